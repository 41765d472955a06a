//! Detects tools that run a program in a machine of their own: userfaultfd does not work there, and the program's code
//! is not the code that runs.

/// Variables by which such tools are recognised.
const KNOWN: [(&str, &str); 3] = [
    ("RUNNING_UNDER_RR", "rr"),
    ("DYNAMORIO_RUNUNDER", "DynamoRIO"),
    ("DYNAMORIO_OPTIONS", "DynamoRIO"),
];

/// The tool that runs this program; `has` returns whether a variable is set.
pub fn around(has: impl Fn(&str) -> bool) -> Option<&'static str> {
    if is_in_valgrind() {
        return Some("valgrind");
    }
    let known = KNOWN.iter().find(|(name, _)| has(name));
    known.map(|(_, tool)| *tool)
}

/// Asks like valgrind's RUNNING_ON_VALGRIND: by rotations that have no effect on a real processor.
fn is_in_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: on a processor the rotations add up to whole turns, and the exchange is of a register with itself;
    // valgrind reads the six words of the request, and writes the answer to rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdi") 0u64 => _,
            in("rax") &raw const request,
            inout("rdx") answer,
        );
    }
    answer != 0
}
