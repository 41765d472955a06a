use std::sync::Arc;

use canvas_core::pager::prefetch::nearby::Nearby;
use canvas_core::pager::prefetch::{Plan, Prefetcher};
use canvas_types::PageId;
use shuttle::thread;

/// Two threads fault in one chunk, a stream passes, and a plan's pages are hit: no thread waits, and no plan is longer
/// than what both threads together can have earned.
#[test]
fn pages_beside_faults_are_judged_by_threads_at_one_time() {
    let mut config = shuttle::Config::new();
    // The state is larger than the stack of shuttle's tasks.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(50), config).run(|| {
        let p = Arc::new(Nearby::new());
        let threads: Vec<_> = (0..2u32)
            .map(|t| {
                let p = p.clone();
                thread::spawn(move || {
                    for i in 0..6u32 {
                        let page = PageId(i % 3 * 2 + t);
                        let plan = p.on_fault(t, page, i as u8, |_| true);
                        assert!(plan.count == 0 || plan.start.0 <= page.0 && plan.count <= 32);
                        p.on_stream(PageId(40 + t), &Plan::NONE);
                        p.on_hit(PageId(page.0 ^ 1));
                        assert!(p.on_unused(page).is_none_or(|n| n >= 1));
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
    });
}
