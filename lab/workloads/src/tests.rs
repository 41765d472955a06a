use super::*;

fn tiny(seed: u64) -> Options {
    Options {
        mib: Some(4),
        seed,
        ..Options::default()
    }
}

#[test]
fn each_answer_is_of_its_seed_and_size() {
    for program in PROGRAMS.iter().filter(|p| !p.timed) {
        let answer = |o: &Options| {
            let out = run(program.name, o).unwrap();
            let (seconds, rate) = (out.seconds.unwrap(), out.ops_per_s.unwrap());
            assert!(seconds > 0.0 && rate > 0.0, "{}: {out:?}", program.name);
            out.answer
        };
        let first = answer(&tiny(1));
        assert_eq!(answer(&tiny(1)), first, "{}", program.name);
        assert_ne!(answer(&tiny(2)), first, "{}", program.name);
        let mut larger = tiny(1);
        larger.mib = Some(6);
        assert_ne!(answer(&larger), first, "{}", program.name);
    }
}

#[test]
fn names_are_unique_and_lower_case() {
    for (i, p) in PROGRAMS.iter().enumerate() {
        assert!(p.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        assert!(PROGRAMS[..i].iter().all(|q| q.name != p.name), "{}", p.name);
        assert!(!p.about.is_empty() && !p.about.ends_with('.'));
        // The range of sizes that the bench's documents promise.
        assert!((256..=1024).contains(&p.mib), "{}", p.name);
        assert!(find(p.name).is_ok());
    }
}

#[test]
fn bad_options_are_one_sentence_that_says_what_to_write() {
    let good = Options::default();
    for (name, options, sentence) in [
        ("nonsense", good.clone(), "write one of sequential, strided"),
        (
            "quicksort",
            Options {
                seconds: Some(1.0),
                ..good.clone()
            },
            "quicksort takes no --seconds",
        ),
        (
            "zipf",
            Options {
                stride: Some(2),
                ..good.clone()
            },
            "zipf takes no --stride",
        ),
        (
            "zipf",
            Options {
                threads: Some(17),
                ..good.clone()
            },
            "--threads 17 is out of range; write 1 to 16",
        ),
        (
            "zipf",
            Options {
                scale: 0.0,
                ..good.clone()
            },
            "--scale 0 is out of range",
        ),
        (
            "zipf",
            Options {
                scale: f64::NAN,
                ..good.clone()
            },
            "--scale NaN is out of range",
        ),
        (
            "zipf",
            Options {
                mib: Some(3),
                ..good.clone()
            },
            "--mib 3 is out of range; write 4 to",
        ),
        (
            "zipf",
            Options {
                seconds: Some(-1.0),
                ..good.clone()
            },
            "--seconds -1 is out of range",
        ),
        (
            "stream",
            Options {
                rounds: Some(11),
                ..good.clone()
            },
            "--rounds 11 is out of range; write 1 to 10",
        ),
        (
            "strided",
            Options {
                mib: Some(4),
                stride: Some(1025),
                ..good.clone()
            },
            "write 1 to the number of pages, 1024",
        ),
        (
            "rmat-bfs",
            Options {
                mib: Some(1 << 20),
                ..good
            },
            "a graph takes at most 16383 MiB",
        ),
    ] {
        match run(name, &options) {
            Err(Failure::Usage(text)) => assert!(text.contains(sentence), "{text}"),
            other => panic!("{name} {options:?}: {other:?}"),
        }
    }
}

#[test]
fn sizes_follow_the_scale() {
    let program = find("stream").unwrap();
    assert_eq!(program.mib_at(1.0), program.mib);
    assert_eq!(program.mib_at(0.25), program.mib / 4);
    assert_eq!(program.mib_at(1e-9), MIB_MIN);
    let job = program
        .job(&Options {
            scale: 2.0,
            ..Options::default()
        })
        .unwrap();
    assert_eq!(job.bytes(), (2 * program.mib as usize) << 20);
}
