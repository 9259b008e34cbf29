//! A process that is forked has none of its parent's threads.

#![cfg(unix)]
#![expect(unsafe_code, reason = "a process is forked")]

use std::time::Duration;

use tollgate::{Clock as _, Limit, Limiter, SECOND, SystemClock, block_on};

/// Two admissions, five milliseconds apart.
fn waits() -> bool {
    let limiter = Limiter::new(Limit::per_second(200).burst(1));
    (0..2).all(|_| block_on(limiter.wait("alice", 60 * SECOND)).is_ok_and(|decision| decision.allowed()))
}

#[test]
fn c6_a_wait_ends_in_a_forked_process() {
    // The timer of this process has a thread now.
    block_on(SystemClock.sleep_until(SystemClock.now().saturating_add(Duration::from_millis(1))));
    assert!(waits());
    // SAFETY: the child goes on with a copy of this thread alone. It uses no lock that another
    // thread may hold, and exits without returning to the test harness.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let has_waited = std::panic::catch_unwind(waits).unwrap_or(false);
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(!has_waited)) };
    }
    assert!(child > 0, "no process was forked");
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
}
