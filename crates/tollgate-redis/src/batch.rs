//! Several requests in one write.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use smallvec::SmallVec;
use tollgate::{Applied, Charge, Op, StoreError, Timestamp};

use crate::calendar::Windows;
use crate::link::SendError;
use crate::script::{Call, Reply, ScriptCharge, Verb, command, parse_reply};
use crate::store::{Pending, Shared};

type Answered = Result<Applied, StoreError>;

/// A request that Redis is to decide.
struct Sent<'a> {
    index: usize,
    pending: Pending<'a>,
    charges: SmallVec<[ScriptCharge; 4]>,
    windows: Windows,
}

impl Shared {
    /// Applies requests one after the other, in order: in one write to a server. A Cluster decides
    /// those of different slots at the same time.
    pub(crate) async fn apply_each(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> Vec<Answered> {
        if self.cluster {
            return self.apply_each_in_cluster(op, requests, now).await;
        }
        let mut answers: Vec<Option<Answered>> = Vec::with_capacity(requests.len());
        let mut sent: Vec<Sent<'_>> = Vec::new();
        let mut commands: Vec<Cmd> = Vec::new();
        let verb = Verb::Op(op);
        let blocks = self.index(verb, 0);
        for (index, charges) in requests.iter().enumerate() {
            answers.push(match self.begin(op, charges, now) {
                Err(denied) => Some(Ok(*denied)),
                Ok(pending) => {
                    let charges: SmallVec<_> = (0..charges.len())
                        .map(|index| ScriptCharge::new(&self.prefix, charges, index))
                        .collect();
                    let windows = Windows::of(&charges, now);
                    let call = Call {
                        verb,
                        charges: &charges,
                        tickets: &[],
                        index: blocks.as_deref(),
                        now,
                        time: self.time,
                    };
                    match command(call, &windows, false) {
                        Ok(command) => {
                            commands.push(command);
                            sent.push(Sent { index, pending, charges, windows });
                            None
                        }
                        Err(error) => Some(Err(error)),
                    }
                }
            });
        }
        let replies =
            if commands.is_empty() { Ok(Vec::new()) } else { self.link.send_each(0, &commands).await };
        match replies {
            Err(error) => {
                let error = StoreError::from(error);
                sent.iter().for_each(|sent| answers[sent.index] = Some(Err(error.clone())));
            }
            Ok(replies) => {
                for (sent, reply) in sent.into_iter().zip(replies) {
                    let index = sent.index;
                    answers[index] = Some(self.answer(op, requests[index], sent, reply, now).await);
                }
            }
        }
        answers
            .into_iter()
            .map(|answer| answer.expect("each request is remembered, sent or refused"))
            .collect()
    }

    /// The answer to a request of a write. What Redis did not decide, because it had no script or
    /// wants another window of a calendar, is asked for again, alone.
    async fn answer(
        &self,
        op: Op,
        request: &[Charge<'_>],
        sent: Sent<'_>,
        reply: Result<Value, SendError>,
        now: Timestamp,
    ) -> Answered {
        let Sent { pending, charges, mut windows, .. } = sent;
        let answered = match reply {
            Err(SendError::NoScript) => return self.apply(op, request, now).await,
            Ok(reply) if windows.add_requested(&reply) => return self.apply(op, request, now).await,
            Ok(reply) => parse_reply(&reply, Verb::Op(op), &charges),
            Err(error) => Err(error.into()),
        };
        let applied = answered.map(|Reply { now, answers, converted, changed, .. }| Applied {
            now,
            answers,
            changed,
            converted,
        });
        self.finish(pending, op, request, applied.as_ref().ok(), now);
        applied
    }

    async fn apply_each_in_cluster(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> Vec<Answered> {
        let mut by_slot: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, charges) in requests.iter().enumerate() {
            let slot = charges.first().map_or(0, |_| ScriptCharge::new(&self.prefix, charges, 0).slot);
            by_slot.entry(slot).or_default().push(index);
        }
        let groups = by_slot.into_values().map(async |indices| {
            let mut answers = Vec::with_capacity(indices.len());
            for index in indices {
                answers.push((index, self.apply(op, requests[index], now).await));
            }
            answers
        });
        let mut answers: Vec<(usize, Answered)> = join_all(groups).await.into_iter().flatten().collect();
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}
