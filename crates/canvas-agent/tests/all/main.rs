//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

#[path = "../common/mod.rs"]
mod common;
mod dispatch;
mod fuzz_short;
mod hostile;
mod lanes;
mod replicas;
mod request_table;
mod rig;
mod shards;
mod squeezed;
