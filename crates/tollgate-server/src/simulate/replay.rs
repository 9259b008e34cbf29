//! One pass over the logs: a thread reads and parses each, the calling thread merges them, and
//! worker threads decide. Every consumer sees every request, in one order of time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::input::Input;
use super::merge::merge;
use super::progress::Progress;
use super::reader::{Batch, Extraction, LogSummary, LoggedRequest, read_log};
use super::steps::{Step, Steps};
use super::traffic::Traffic;

/// Steps of a batch.
const STEPS: usize = 4_096;

/// Batches that wait for a slower thread.
const WAITING: usize = 4;

/// Takes part in a pass.
pub(super) trait Consumer: Send {
    fn take(&mut self, steps: &Steps);
}

/// Reads all logs once, counts their traffic, and passes every step to every consumer.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn replay(
    logs: &[Input],
    extraction: &Extraction,
    traffic: &mut Traffic,
    consumers: &mut [&mut dyn Consumer],
    progress: &Progress,
) -> Result<Vec<LogSummary>, String> {
    let opened = logs.iter().map(|log| log.open(progress.bytes_read())).collect::<Result<Vec<_>, _>>()?;
    let attributes = extraction.has_configuration.then_some(extraction.attributes.len());
    thread::scope(|scope| {
        let (mut readers, mut batches) = (Vec::new(), Vec::new());
        for (log, opened) in logs.iter().zip(opened) {
            let (sender, receiver) = sync_channel(WAITING);
            readers.push(scope.spawn(move || read_log(&log.name, opened, extraction, &sender)));
            batches.push(receiver);
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = consumers.len().div_ceil(cores).max(1);
        let workers: Vec<SyncSender<Arc<Steps>>> = consumers
            .chunks_mut(share)
            .map(|consumers| {
                let (sender, receiver) = sync_channel(WAITING);
                scope.spawn(move || consume(&receiver, consumers));
                sender
            })
            .collect();
        distribute(batches, traffic, attributes, &workers, progress);
        drop(workers);
        let joined =
            readers.into_iter().map(|reader| reader.join().map_err(|_| "a log's reader failed".to_owned()));
        joined.map(|summary| summary?).collect()
    })
}

fn consume(batches: &Receiver<Arc<Steps>>, consumers: &mut [&mut dyn Consumer]) {
    for steps in batches {
        for consumer in &mut *consumers {
            consumer.take(&steps);
        }
    }
}

/// Merges the logs, and passes them on to all workers.
fn distribute(
    logs: Vec<Receiver<Batch>>,
    traffic: &mut Traffic,
    attributes: Option<usize>,
    workers: &[SyncSender<Arc<Steps>>],
    progress: &Progress,
) {
    let mut steps = Steps::with_attributes(attributes);
    let send = |steps: &mut Steps, requests: u64| {
        progress.report(requests);
        let full = Arc::new(std::mem::replace(steps, Steps::with_attributes(attributes)));
        for worker in workers {
            // A worker that is gone has panicked, and the scope passes that on.
            let _ = worker.send(Arc::clone(&full));
        }
    };
    merge(logs, |batch: &Batch, index: usize, request: &LoggedRequest| {
        let LoggedRequest { time, cost, client } = *request;
        let client = traffic.count(time, cost, client.map(|span| batch.text_of(span)));
        steps.push(Step { time, cost, client }, batch, index);
        if steps.steps.len() == STEPS {
            send(&mut steps, traffic.requests);
        }
    });
    send(&mut steps, traffic.requests);
}
