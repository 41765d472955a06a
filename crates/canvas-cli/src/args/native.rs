//! What becomes of memory that canvas does not page.

use clap::{Args, ValueEnum};

/// The flag about the host's swap.
#[derive(Args, Clone, Copy, Debug)]
pub struct NativeSwapArgs {
    /// Whether the program's native memory may leave through the host's swap, where there is one, when --local is
    /// too small for it.
    #[arg(long, env = "CANVAS_NATIVE_SWAP", value_enum, default_value_t = NativeSwapArg::On, hide_env_values = true)]
    pub native_swap: NativeSwapArg,
}

impl NativeSwapArgs {
    /// It may.
    pub fn is_on(self) -> bool {
        self.native_swap == NativeSwapArg::On
    }
}

/// `--native-swap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum NativeSwapArg {
    /// What is not used leaves, a few MiB at a time; what is used comes back.
    On,
    /// It stays, and the program runs over its limit.
    Off,
}
