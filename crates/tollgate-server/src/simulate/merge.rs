//! Several logs as one, in the order of time.
//!
//! Each log is in order by itself, because its reader raises a late time to the newest. Of equal
//! times the log that was named first goes first, so every pass has the same order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::Receiver;

use tollgate::Timestamp;

use super::reader::{Batch, LoggedRequest};

/// A log, as far as it has been received.
struct Log {
    batches: Receiver<Batch>,
    batch: Batch,
    next: usize,
}

impl Log {
    /// The time of the next request. Waits for it; `None` at the end.
    fn next_time(&mut self) -> Option<Timestamp> {
        while self.next >= self.batch.requests.len() {
            (self.batch, self.next) = (self.batches.recv().ok()?, 0);
        }
        self.batch.requests.get(self.next).map(|request| request.time)
    }
}

/// Calls `each` with every request of all logs, its batch and its index in the batch.
pub(super) fn merge(logs: Vec<Receiver<Batch>>, mut each: impl FnMut(&Batch, usize, &LoggedRequest)) {
    let mut logs: Vec<Log> =
        logs.into_iter().map(|batches| Log { batches, batch: Batch::default(), next: 0 }).collect();
    let mut heads: BinaryHeap<Reverse<(Timestamp, usize)>> = BinaryHeap::new();
    for (index, log) in logs.iter_mut().enumerate() {
        heads.extend(log.next_time().map(|time| Reverse((time, index))));
    }
    while let Some(Reverse((_, index))) = heads.pop() {
        let Some(log) = logs.get_mut(index) else { continue };
        // As long as no other log has an earlier request, this one goes on.
        let other = heads.peek().map(|Reverse(head)| *head);
        loop {
            if let Some(request) = log.batch.requests.get(log.next) {
                each(&log.batch, log.next, request);
                log.next += 1;
            }
            match log.next_time() {
                Some(time) if other.is_none_or(|other| (time, index) < other) => {}
                Some(time) => {
                    heads.push(Reverse((time, index)));
                    break;
                }
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn requests_of_all_logs_come_in_the_order_of_time_and_then_of_the_logs() {
        let log = |times: &[&[u64]]| {
            let (sender, receiver) = sync_channel(9);
            for times in times {
                let request = |time: &u64| LoggedRequest {
                    time: Timestamp::from_secs(*time),
                    cost: *time,
                    client: None,
                };
                let requests = times.iter().map(request).collect();
                sender.send(Batch { requests, ..Batch::default() }).unwrap();
            }
            receiver
        };
        let logs = vec![log(&[&[1, 5, 5], &[], &[9]]), log(&[]), log(&[&[2, 5], &[5, 6, 10]])];
        let mut merged = Vec::new();
        merge(logs, |batch, index, request| {
            assert_eq!(batch.requests[index].cost, request.cost);
            merged.push((request.cost, batch.requests.len()));
        });
        let times: Vec<u64> = merged.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [1, 2, 5, 5, 5, 5, 6, 9, 10]);
        assert_eq!(
            merged.iter().map(|(_, of)| *of).collect::<Vec<_>>()[2..6],
            [3, 3, 2, 3],
            "the first log first"
        );
    }
}
