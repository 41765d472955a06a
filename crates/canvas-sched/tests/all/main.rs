//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

mod model;
mod naive;
mod properties;
mod simulation;
mod world;
