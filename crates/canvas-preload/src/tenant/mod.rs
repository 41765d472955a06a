//! This process among those of its tenant, through the segment: who lives, what each holds, and the far area.

pub mod far_area;
pub mod life;
pub mod members;
pub mod smaps;
