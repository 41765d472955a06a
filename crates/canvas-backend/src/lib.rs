//! canvas-backend
#![no_std]
