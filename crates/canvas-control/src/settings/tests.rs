use super::given::Source::{CommandLine, File, Options, Variable};
use super::table::*;
use super::*;
use canvas_types::units::Size;

fn run(options: &str) -> Settings {
    let mut settings = Settings::of(Command::Run);
    settings.give_options(options, CommandLine, false).unwrap();
    settings
}

#[test]
fn names_are_unique_for_each_command_and_defaults_are_values_or_prose() {
    for command in Command::ALL {
        let names: Vec<&str> = settings_of(command).map(|row| row.name).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{command:?}: {name}");
        }
    }
    for row in TABLE {
        assert!(row.text.ends_with('.'), "{}", row.name);
        let is_prose = row.default.contains(' ') || row.default.contains('~');
        assert!(
            row.default.is_empty() || is_prose || row.read(row.default).is_ok(),
            "{}: {}",
            row.name,
            row.default
        );
        assert_eq!(row.values.is_empty(), row.shape == Shape::Switch);
    }
}

/// Values are compared by effect: as a share of memory, as a number of slabs.
#[test]
fn a_run_differs_from_its_tenant_in_what_was_given() {
    let tenant =
        run("pool=1G,spill-at=70,far=320M,far-wait=30s,proactive-batch=256K,prefetch=streams");
    let differs = |options: &str| run(options).differs(&tenant).map(|d| d.to_string());
    for same in [
        "",
        "pool=1024M",
        "far=300M",
        "spill-at=70",
        "far-wait=30000ms",
        // Settings that the tenant does not have are not compared; settings of a run alone may
        // differ.
        "codec=none",
        "host-reserve=0",
    ] {
        assert_eq!(differs(same), None, "{same}");
    }
    // An explicitly given default counts like any other value.
    assert_eq!(
        differs("spill-at=80").unwrap(),
        "-o spill-at 80 differs from the tenant's setting, 70; leave it out, or change the tenant with `canvas set`"
    );
    for (other, want) in [
        ("pool=2G", "--pool 2G differs from the tenant's setting, 1G"),
        (
            "far=400M",
            "--far 400M differs from the tenant's setting, 320M",
        ),
        ("far-wait=31s", "-o far-wait 31s differs"),
        (
            "prefetch=auto",
            "-o prefetch auto differs from the tenant's setting, streams",
        ),
    ] {
        assert!(differs(other).unwrap().starts_with(want), "{other}");
    }
}

#[test]
fn the_nearer_source_wins_and_each_is_named_as_it_was_written() {
    let mut settings = Settings::of(Command::Run);
    let pool = |settings: &Settings| settings.get(POOL).unwrap().to_string();
    settings.give("pool", "1G", File).unwrap();
    settings.give("pool", "2G", Options).unwrap();
    assert_eq!(
        (pool(&settings), settings.written(POOL)),
        ("2G".into(), "CANVAS_OPTIONS: pool=2G".into())
    );
    settings.give("pool", "3G", File).unwrap();
    assert_eq!(pool(&settings), "2G");
    settings.give("pool", "4G", CommandLine).unwrap();
    assert_eq!(
        (pool(&settings), settings.written(POOL)),
        ("4G".into(), "--pool 4G".into())
    );
    settings.give("local", "1G", Variable).unwrap();
    assert_eq!(settings.written(LOCAL), "CANVAS_LOCAL=1G");
    settings.give("unit", "4K", CommandLine).unwrap();
    assert_eq!(settings.written(UNIT), "-o unit=4K");
    assert_eq!(settings.value(SPILL_AT), 80);
    assert!(!settings.has(SPILL_AT) && settings.has(UNIT));
}

#[test]
fn options_are_separated_and_lists_stay_together() {
    let mut settings = Settings::of(Command::Run);
    settings
        .give_options(
            " pool=1G,numa=1=1G,2=2G  unit=64K\nslo=p99=300us",
            Options,
            true,
        )
        .unwrap();
    assert_eq!(settings.get(POOL), Some(Size::from_bytes(1 << 30)));
    assert_eq!(settings.get(NUMA).unwrap().len(), 2);
    assert_eq!(settings.written(SLO), "CANVAS_OPTIONS: slo=p99=300us");
    let to = run("to=a:1,b:2,gossip:c:3").get(TO).unwrap();
    assert_eq!(to.len(), 3);
    // In a variable that all commands read, options of other commands are ignored.
    let mut disk = Settings::of(Command::Disk);
    disk.give_options("mode=signal spill-at=70", Options, true)
        .unwrap();
    assert_eq!(disk.value(SPILL_AT), 70);
    assert!(
        disk.give_options("mode=signal", CommandLine, false)
            .is_err()
    );
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let why = |command, options: &str| {
        let mut settings = Settings::of(command);
        let given = settings.give_options(options, CommandLine, false);
        given.unwrap_err().to_string()
    };
    for (options, want) in [
        (
            "local=1M",
            "--local 1M: it is too small; write 8M or more, or a share such as 25%",
        ),
        ("pool=4K", "--pool 4K: it is too small; write 1M or more"),
        ("far=3T", "--far 3T: it is too large; write 2T or less"),
        (
            "spill-at=100",
            "-o spill-at=100: it is not a part of the pool; write 1 to 99 percent",
        ),
        (
            "prefetch=all",
            "-o prefetch=all: write one of streams, leap, readahead, none, auto",
        ),
        (
            "copies=none",
            "--copies none: one copy at a donor and no other is written 1",
        ),
        ("copies=4", "--copies 4: write one of 1+disk,"),
        (
            "lanes=auto",
            "-o lanes=auto: it is neither; write on or off",
        ),
        (
            "proactive-threshold=on",
            "-o proactive-threshold=on: it does not start",
        ),
        (
            "proactive-batch=65M",
            "-o proactive-batch=65M: it is out of range; write 4K to 64M",
        ),
        (
            "far-wait=1us",
            "-o far-wait=1us: it is too short for any answer",
        ),
        (
            "host-reserve=51%",
            "-o host-reserve=51%: it is more than half of the host",
        ),
        ("links=5", "-o links=5: it is out of range; write 1 to 4"),
        (
            "weight=0",
            "-o weight=0: it is not a weight; write 1 to 1000",
        ),
        (
            "swap-in-limit=1K/s",
            "-o swap-in-limit=1K/s: it is too small; write 64K/s or more",
        ),
        ("numa=1=1G,1=2G", "--numa 1=1G,1=2G: it names node 1 twice"),
        (
            "to=here",
            "--to here: it is not a destination of far memory; write disk:DIR, HOST:PORT",
        ),
        (
            "to=agent,a:1",
            "--to agent,a:1: the host's agent has destinations of its own",
        ),
        ("tenant=a b", "--tenant a b: it is not a tenant's name"),
        (
            "server=a:1",
            "there is no option server; write to=HOST:PORT",
        ),
        (
            "far-spin=1us",
            "there is no option far-spin; write spin=TIME",
        ),
        (
            "far-waits=1s",
            "there is no option far-waits; did you mean far-wait? see `canvas help tunables`",
        ),
        (
            "restarts=1",
            "`canvas run` has no option restarts, which is one of canvas disk",
        ),
        ("pool", "-o pool is no option; write NAME=VALUE"),
    ] {
        let why = why(Command::Run, options);
        assert!(why.starts_with(want), "{options}: {why}");
    }
    assert!(why(Command::Serve, "lease=0s").contains("would free everything"));
    assert!(why(Command::Agent, "to=agent").contains("an agent keeps far memory by itself"));
    assert!(why(Command::Agent, "threads=65").contains("a number from 1 to 64"));
}

#[test]
fn an_old_word_is_answered_by_the_new_one() {
    use text::{flag_replaced, variable_replaced};
    let flag = |command, flag| flag_replaced(command, flag).unwrap();
    assert_eq!(
        flag(Command::Run, "--server"),
        "there is no flag --server; write --to HOST:PORT"
    );
    assert_eq!(
        flag(Command::Run, "--unit"),
        "there is no flag --unit; write -o unit=SIZE|auto"
    );
    assert_eq!(
        flag(Command::Serve, "--seed"),
        "there is no flag --seed; write --join HOST:PORT"
    );
    assert_eq!(
        flag(Command::Agent, "--far-max"),
        "there is no flag --far-max; write --far SIZE"
    );
    assert_eq!(flag_replaced(Command::Run, "--nonsense"), None);
    assert_eq!(
        variable_replaced("CANVAS_SERVER").unwrap(),
        "CANVAS_SERVER is not read; write CANVAS_OPTIONS=to=HOST:PORT, or unset it"
    );
    for read in [
        "CANVAS_LOCAL",
        "CANVAS_FAR",
        "CANVAS_TENANT",
        "CANVAS_PRELOAD_SO",
        "HOME",
    ] {
        assert_eq!(variable_replaced(read), None);
    }
}

/// Few flags, so that they fit on a screen; everything else is a tunable.
#[test]
fn flags_are_few() {
    for (command, most) in [
        // Not counted: -o; --config of a donor and an agent; --replace of an agent.
        (Command::Run, 14),
        (Command::Disk, 15),
        (Command::Agent, 9),
        (Command::Serve, 9),
    ] {
        let flags = settings_of(command).filter(|row| row.is_flag_of(command));
        let flags: Vec<&str> = flags.map(|row| row.name).collect();
        assert!(flags.len() <= most, "{command:?}: {flags:?}");
    }
}

#[test]
fn the_page_about_tunables_is_the_table() {
    let page = include_str!("../../../../docs/TUNABLES.md");
    let want = text::markdown();
    if std::env::var_os("CANVAS_WRITE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TUNABLES.md");
        std::fs::write(path, want).unwrap();
        return;
    }
    assert!(
        page == want,
        "docs/TUNABLES.md is not the table; run this test with CANVAS_WRITE_DOCS=1"
    );
}
