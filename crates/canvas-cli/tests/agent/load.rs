//! A program that uses far memory until it is told to end, and checks every byte of it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use canvas_shm::mailbox::Status;

use crate::client::Client;

/// Ends the other threads when its own thread panics, so that a failing test ends.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}

/// The program's side of `Run::go_on`.
pub fn wait_to_go_on() {
    println!("ready");
    std::io::stdin().lines().next().unwrap().unwrap();
}

/// Four threads write, read and free until told to end.
pub fn load() {
    let c = Client::join();
    let over = AtomicBool::new(false);
    let first = c.take_slab().unwrap();
    let ran = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        for t in 0..4u32 {
            let (c, over, ran) = (&c, &over, &ran);
            s.spawn(move || {
                let _ends = Ends(over);
                // Each thread has its own extents, and knows their versions.
                let mut rng = fastrand::Rng::with_seed(u64::from(t));
                let mut versions = [0u64; 40];
                while !over.load(Relaxed) {
                    let n = rng.usize(0..versions.len());
                    let extent = first + t * 40 + n as u32;
                    if versions[n] == 0 || rng.u8(0..4) == 0 {
                        versions[n] += 1;
                        assert_eq!(c.write(extent, versions[n]), Status::Ok);
                    } else {
                        let record = rng.usize(0..20);
                        assert_eq!(c.read_record(extent, versions[n], record), Status::Ok);
                    }
                    ran.fetch_add(1, Relaxed);
                }
                for (n, version) in versions.iter().enumerate().filter(|(_, v)| **v > 0) {
                    let extent = first + t * 40 + n as u32;
                    assert_eq!(c.read_record(extent, *version, 100), Status::Ok);
                }
            });
        }
        s.spawn(|| {
            let _ends = Ends(&over);
            while !over.load(Relaxed) {
                let Some(slab) = c.take_slab() else {
                    panic!("128M are two slabs")
                };
                assert_eq!(c.write(slab + 5, 1), Status::Ok);
                c.drop_slab(slab);
            }
        });
        wait_to_go_on();
        // However early it is told to end, it does a little.
        while ran.load(Relaxed) < 500 && !over.load(Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        over.store(true, Relaxed);
    });
}
