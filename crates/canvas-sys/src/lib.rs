//! canvas-sys
#![no_std]
