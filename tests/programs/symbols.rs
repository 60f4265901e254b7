// As symbols.c, in Rust.
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static SUM: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

mod place {
    #[inline(never)]
    pub fn turn(times: u64) {
        for i in 0..times {
            super::SUM.fetch_add(i, super::Ordering::Relaxed);
        }
    }
}

fn main() {
    println!("at place::turn {:x}\nready", place::turn as *const () as usize);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        STOP.store(true, Ordering::Relaxed);
    });
    while !STOP.load(Ordering::Relaxed) {
        place::turn(20000);
    }
}
