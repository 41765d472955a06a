//! canvas-swap
#![no_std]
