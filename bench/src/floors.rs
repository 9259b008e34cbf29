//! Floors: what the machine needs for the least that any limiter has to do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock, SystemClock};

use crate::contenders::{Contender, batches, random_keys};

fn cells_for(keys: u64) -> Vec<AtomicU64> {
    (0..keys).map(|_| AtomicU64::new(0)).collect()
}

/// A token bucket and nothing else: one compare-and-swap.
fn take(cell: &AtomicU64, now: u64) -> u64 {
    let next = |full_at: u64| Some(full_at.max(now) + 1_000).filter(|next| next - now <= 1_000_000_000_000);
    u64::from(cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok())
}

fn now() -> u64 {
    SystemClock.now().as_nanos()
}

pub fn one_cell() -> Contender {
    let cell = AtomicU64::new(0);
    Contender::new(
        "floor: CAS on one cell, clock read",
        Box::new(move |_, _, checks| (0..checks).map(|_| take(&cell, now())).sum()),
    )
}

pub fn cells(keys: u64) -> Contender {
    let cells = cells_for(keys);
    Contender::new(
        "floor: CAS on an indexed array, clock read",
        Box::new(move |seed, keys, checks| {
            random_keys(seed, keys, checks).map(|key| take(&cells[key as usize], now())).sum()
        }),
    )
}

pub fn cells_without_clock(keys: u64) -> Contender {
    let cells = cells_for(keys);
    Contender::new(
        "floor: CAS on an indexed array, no clock",
        Box::new(move |seed, keys, checks| {
            let now = now();
            random_keys(seed, keys, checks).map(|key| take(&cells[key as usize], now)).sum()
        }),
    )
}

pub fn cells_in_batches(keys: u64) -> Contender {
    let cells = cells_for(keys);
    Contender::new(
        "floor: CAS on an indexed array, fetched in batches of 64",
        Box::new(move |seed, keys, checks| {
            let mut admitted = 0;
            batches(seed, keys, checks, |batch| {
                batch.iter().for_each(|key| prefetch(&cells[*key as usize]));
                let now = now();
                admitted += batch.iter().map(|key| take(&cells[*key as usize], now)).sum::<u64>();
            });
            admitted
        }),
    )
}

fn prefetch(cell: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint about memory that is there.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(cell).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = cell;
}

/// A plain hash map with a fast hash.
pub fn map() -> Contender {
    let map: Mutex<hashbrown::HashMap<u64, u64, foldhash::fast::RandomState>> = Mutex::default();
    Contender::new(
        "floor: hashbrown, one thread, no clock",
        Box::new(move |seed, keys, checks| {
            let mut map = map.lock().expect("no panic");
            let mut add = |key| {
                let value = map.entry(key).or_insert(0);
                *value += 1;
                u64::from(*value > 0)
            };
            random_keys(seed, keys, checks).map(&mut add).sum()
        }),
    )
    .for_one_thread()
}
