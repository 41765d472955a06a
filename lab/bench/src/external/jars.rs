//! YCSB's jars from Maven Central, and the bench's classes for it, compiled once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::WorkloadError;
use super::files;
use super::tools;
use crate::workload::Place;

const POM: &str = include_str!("java/pom.xml");
const SOURCES: [(&str, &str); 5] = [
    ("Values.java", include_str!("java/canvasbench/Values.java")),
    (
        "Records.java",
        include_str!("java/canvasbench/Records.java"),
    ),
    (
        "RedisRecords.java",
        include_str!("java/canvasbench/RedisRecords.java"),
    ),
    (
        "MemcachedRecords.java",
        include_str!("java/canvasbench/MemcachedRecords.java"),
    ),
    ("Ending.java", include_str!("java/canvasbench/Ending.java")),
];
/// All jars that the pom needs, with their SHA-256.
const JARS: [(&str, &str); 11] = [
    (
        "HdrHistogram-2.1.12.jar",
        "9b47fbae444feaac4b7e04f0ea294569e4bc282bc69d8c2ce2ac3f23577281e2",
    ),
    (
        "commons-pool2-2.11.1.jar",
        "ea0505ee7515e58b1ac0e686e4d1a5d9f7d808e251a61bc371aa0595b9963f83",
    ),
    (
        "core-0.17.0.jar",
        "e1c64d09bfc642715428c2e53ec129b0a98a0e634ee32bf0ae77e5b4eebb3cda",
    ),
    (
        "gson-2.10.1.jar",
        "4241c14a7727c34feea6507ec801318a3d4a90f070e4525681079fb94ee4c593",
    ),
    (
        "htrace-core4-4.1.0-incubating.jar",
        "5d45b7904857c3e4ad36b3bcc57be2d2c5f308c69b5f6a58bd86aa7d48a25ef6",
    ),
    (
        "jackson-core-asl-1.9.4.jar",
        "6129e1b91d7850ba250b1375094c8ca215a0f7cf234b6f60a2f4a88d5b1272c9",
    ),
    (
        "jackson-mapper-asl-1.9.4.jar",
        "f013389c3eb92aa997df801e4a352464925af634a4af3e5bd77c6c0763dc9c99",
    ),
    (
        "jedis-4.4.8.jar",
        "013713c0b5bce1309acf5ec383ab0271e84e9f6cb149457fb50d9da14c0ca034",
    ),
    (
        "json-20231013.jar",
        "0f18192df289114e17aa1a0d0a7f8372cc9f5c7e4f7e39adcf8906fe714fa7d3",
    ),
    (
        "slf4j-api-1.7.36.jar",
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    ),
    (
        "spymemcached-2.12.3.jar",
        "133092565f8308b9bcbfce83909d11f505d4094b856ead24e299ac93679bb4e2",
    ),
];
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";

/// A directory for each version of the pom and of the bench's classes.
fn home(place: &Place) -> PathBuf {
    let mut all = POM.to_owned();
    for (_, text) in SOURCES {
        all.push_str(text);
    }
    let sum = files::sha256(all.as_bytes());
    place.cache.join(format!("ycsb-{}", &sum[..12]))
}

fn java() -> Result<PathBuf, WorkloadError> {
    tools::java_home(11..=99, true)
}

/// The `java` program that runs YCSB.
pub fn java_program() -> Result<PathBuf, WorkloadError> {
    Ok(java()?.join("bin/java"))
}

/// The class path; valid after `prepare`.
pub fn class_path(place: &Place) -> String {
    let home = home(place);
    format!("{0}/classes:{0}/jars/*", home.display())
}

/// Reason why YCSB cannot run.
pub fn missing(place: &Place) -> Option<WorkloadError> {
    if let Err(e) = java() {
        return Some(e);
    }
    if home(place).exists() {
        return None;
    }
    tools::missing("mvn", "maven")
}

/// Downloads and compiles; does nothing the second time.
pub fn prepare(place: &Place) -> Result<(), WorkloadError> {
    let java = java()?;
    files::produce(&home(place), |dir| {
        files::need_free(&place.cache, 32 << 20)?;
        let (jars, sources) = (dir.join("jars"), dir.join("src"));
        files::make_dir(&jars)?;
        files::make_dir(&sources)?;
        files::write(&dir.join("pom.xml"), POM.as_bytes())?;
        let mvn = tools::need("mvn", "maven")?;
        files::run(
            Command::new(mvn)
                .env("JAVA_HOME", &java)
                .args(["-B", "-q", "-f"])
                .arg(dir.join("pom.xml"))
                .arg(PLUGIN)
                .arg("-DincludeScope=runtime")
                .arg(format!("-DoutputDirectory={}", jars.display())),
        )
        .map_err(|e| WorkloadError::Fetch(Box::new(e)))?;
        check(&jars)?;
        for (name, text) in SOURCES {
            files::write(&sources.join(name), text.as_bytes())?;
        }
        files::run(
            Command::new(java.join("bin/javac"))
                .args(["--release", "11", "-cp"])
                .arg(format!("{}/*", jars.display()))
                .arg("-d")
                .arg(dir.join("classes"))
                .args(SOURCES.iter().map(|(name, _)| sources.join(name))),
        )
    })
    .map(|_| ())
}

/// Checks that exactly the expected jars are there.
fn check(dir: &Path) -> Result<(), WorkloadError> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        found.insert(name, files::sha256_of(&entry.path())?);
    }
    for (name, sum) in JARS {
        match found.remove(name) {
            Some(got) if got == sum => {}
            Some(got) => {
                return Err(WorkloadError::OtherJar {
                    name,
                    got,
                    known: sum,
                });
            }
            None => return Err(WorkloadError::NotFetched(name)),
        }
    }
    match found.into_keys().next() {
        Some(name) => Err(WorkloadError::NotAskedFor(name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jar_that_is_not_the_known_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, _) in JARS {
            files::write(&dir.path().join(name), b"PK").unwrap();
        }
        let e = check(dir.path()).unwrap_err().to_string();
        assert!(
            e.contains("HdrHistogram-2.1.12.jar") && e.contains("SHA-256"),
            "{e}"
        );
        fs::remove_file(dir.path().join(JARS[0].0)).unwrap();
        let e = check(dir.path()).unwrap_err().to_string();
        assert_eq!(e, "Maven did not fetch HdrHistogram-2.1.12.jar");
    }

    #[test]
    fn each_jar_of_the_pom_has_a_sum() {
        for part in POM.split("<artifactId>").skip(2) {
            let name = part.split('<').next().unwrap();
            let version = part
                .split("<version>")
                .nth(1)
                .and_then(|v| v.split('<').next())
                .unwrap();
            let jar = format!("{name}-{version}.jar");
            assert!(JARS.iter().any(|(n, _)| *n == jar), "{jar}");
        }
    }
}
