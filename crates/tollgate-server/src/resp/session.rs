//! The state of one connection, and the execution of its commands.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate::{AsRequest as _, Clock as _, Error};
use tracing::info;

use super::answer;
use super::command::{Admin, Check, Command, Other};
use super::frame::Frame;
use super::handshake;
use super::reply::{Replies, Version};
use super::request::{CheckRequest, LastLimit};
use super::slot::SlotCommand;
use super::transaction::Queue;
use crate::app::{App, STOPWATCH};
use crate::buffers::TOO_MUCH;
use crate::caller::Sender;
use crate::connection::Connection;
use crate::metrics::Route;
use crate::secret::Secret;

/// Replies beyond this are sent before more is parsed: the memory cost of a client that never
/// reads.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// The usual size of the reply to a check, at most.
const REPLY_BYTES: usize = 128;

/// The most checks of a batch, so that other connections get a turn.
const BATCH_MAX: usize = 512;

/// The initial capacity of a batch.
const BATCH_USUAL: usize = 16;

/// A command that joins no batch.
#[derive(Debug)]
enum Single<'a> {
    /// A check that changes nothing.
    Peek(CheckRequest<'a>),
    Record(Check<'a>),
    Slot(SlotCommand<'a>),
    Admin(Result<Admin<'a>, String>),
    Exec,
    Other(Other<'a>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    app: Arc<App>,
    pub(super) id: i64,
    pub(super) name: Vec<u8>,
    sender: Sender,
    peer: IpAddr,
    /// The admin token of a successful `AUTH`, valid while it is the one in force.
    token: Option<Secret>,
    /// Whether the last command had a wrong token.
    pub(super) wrong_token: bool,
    /// Whether the connection ends: by `QUIT` or a protocol violation.
    pub(super) closing: bool,
    /// The number of commands received.
    pub(super) commands: u64,
    frame: Frame,
    last: LastLimit,
    /// The open transaction.
    pub(super) queue: Option<Queue>,
    pub(super) replies: Replies,
}

impl Session {
    pub(super) fn new(app: Arc<App>, connection: &Connection) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = i64::try_from(IDS.fetch_add(1, Ordering::Relaxed)).unwrap_or(i64::MAX);
        Self {
            app,
            id,
            name: Vec::new(),
            sender: connection.sender.clone(),
            peer: connection.peer.ip(),
            token: None,
            wrong_token: false,
            closing: false,
            commands: 0,
            frame: Frame::default(),
            last: LastLimit::default(),
            queue: None,
            replies: Replies::default(),
        }
    }

    /// Executes the complete commands in `bytes`, in order, while there is room for replies.
    /// Returns their length. Consecutive checks are one batch.
    pub(super) async fn answer(&mut self, bytes: &[u8]) -> usize {
        let began = STOPWATCH.now();
        let before = self.commands;
        let mut frame = std::mem::take(&mut self.frame);
        let mut batch: Vec<CheckRequest<'_>> = Vec::new();
        let mut start = 0;
        while !self.closing && self.has_room_behind(batch.len()) {
            let rest = bytes.get(start..).unwrap_or_default();
            match frame.read(rest) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    start = start.saturating_add(length);
                    if frame.len() > 0 {
                        self.commands = self.commands.saturating_add(1);
                        let queued = self.queue.as_mut().is_some_and(|queue| {
                            queue.enqueue(&frame, rest.get(..length).unwrap_or_default(), &mut self.replies)
                        });
                        if !queued && let Some(other) = self.gather(&frame, rest, &mut batch) {
                            self.decide(&mut batch).await;
                            self.run(other).await;
                        }
                    }
                    frame.clear();
                }
                Err(malformed) => {
                    self.decide(&mut batch).await;
                    self.replies.error("ERR", format_args!("Protocol error: {malformed}"));
                    self.closing = true;
                }
            }
        }
        self.decide(&mut batch).await;
        self.frame = frame;
        let answered = usize::try_from(self.commands.saturating_sub(before)).unwrap_or(0);
        self.app.metrics.took(Route::RESP, STOPWATCH.now().since(began), answered);
        start
    }

    /// Whether there is room for another reply behind those of a batch.
    fn has_room_behind(&self, batch: usize) -> bool {
        let expected = batch.saturating_mul(REPLY_BYTES).saturating_add(self.replies.bytes.len());
        expected < REPLY_BYTES_MAX && batch < BATCH_MAX
    }

    /// Parses a command. A check joins the batch; any other command is returned.
    fn gather<'a>(
        &mut self,
        frame: &Frame,
        bytes: &'a [u8],
        batch: &mut Vec<CheckRequest<'a>>,
    ) -> Option<Result<Single<'a>, String>> {
        let request = match Command::parse(frame, bytes) {
            Ok(Command::Throttle(throttle)) => {
                let limit = self.last.resolve(&self.app.limiter, throttle.limit);
                limit.map(|limit| CheckRequest::Throttle(throttle, limit, self.sender.caller))
            }
            Ok(Command::Check(check)) => Ok(CheckRequest::Check(check.sent_by(self.sender.caller))),
            Ok(Command::Record(record)) => {
                return Some(Ok(Single::Record(record.sent_by(self.sender.caller))));
            }
            Ok(Command::Slot(slot)) => return Some(Ok(Single::Slot(slot))),
            Ok(Command::Admin(admin)) => return Some(Ok(Single::Admin(admin))),
            Ok(Command::Exec) => return Some(Ok(Single::Exec)),
            Ok(Command::Other(other)) => return Some(Ok(Single::Other(other))),
            Err(error) => Err(error),
        };
        match request {
            Ok(peek) if peek.is_peek() => Some(Ok(Single::Peek(peek))),
            Ok(request) => {
                if batch.capacity() == 0 {
                    batch.reserve(BATCH_USUAL);
                }
                batch.push(request);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// `EXEC`: executes the queued commands.
    async fn execute(&mut self) {
        let Some(queue) = self.queue.take() else {
            return self.replies.error("ERR", "EXEC without MULTI");
        };
        if queue.aborted {
            let sentence = "Transaction discarded because of previous errors.";
            return self.replies.error("EXECABORT", sentence);
        }
        self.replies.array(queue.commands);
        let (mut frame, mut batch, mut rest) = (Frame::default(), Vec::new(), queue.bytes.as_slice());
        while let Ok(Some(length)) = frame.read(rest) {
            let other = self.gather(&frame, rest, &mut batch);
            if other.is_some() || batch.len() >= BATCH_MAX {
                self.decide(&mut batch).await;
            }
            if let Some(other) = other {
                // Transactions do not nest, so neither does this call.
                Box::pin(self.run(other)).await;
            }
            frame.clear();
            rest = rest.get(length..).unwrap_or_default();
        }
        self.decide(&mut batch).await;
    }

    /// Decides the batch in order.
    async fn decide(&mut self, batch: &mut Vec<CheckRequest<'_>>) {
        if batch.is_empty() {
            return;
        }
        let Self { app, replies, sender, .. } = self;
        let requests: SmallVec<[&CheckRequest<'_>; 64]> = batch.iter().collect();
        let telemetry = app.telemetry().map(|telemetry| (telemetry, STOPWATCH.now()));
        let mut request = batch.iter();
        app.check_many(&requests, |decision| {
            let Some(request) = request.next() else { return };
            answer::decision(replies, request, &decision);
            if decision.as_ref().is_err_and(answer::is_overload) {
                app.refused_as_overloaded(sender);
            }
            if let (Some((telemetry, began)), Ok(decision)) = (telemetry, &decision)
                && let Some(span) = telemetry.sample_alone(began)
            {
                let names = &app.decisions.names;
                request.with_request(|request| span.decided("resp", &request, decision, names));
            }
        })
        .await;
        drop(requests);
        batch.clear();
    }

    async fn run(&mut self, command: Result<Single<'_>, String>) {
        match command {
            Err(error) => self.replies.error("ERR", error),
            Ok(Single::Peek(request)) => self.peek(&request).await,
            Ok(Single::Record(record)) => self.record(&record).await,
            Ok(Single::Slot(slot)) => {
                let done = slot.run(&self.app, self.sender.caller, &mut self.replies).await;
                done.unwrap_or_else(|error| self.fail(&error));
            }
            Ok(Single::Admin(_)) if !self.is_admin() => {
                self.replies.error("NOAUTH", "Authentication required; AUTH with the admin token first");
            }
            Ok(Single::Admin(Err(error))) => self.replies.error("ERR", error),
            Ok(Single::Admin(Ok(Admin::Reset(client)))) => self.reset(&client).await,
            Ok(Single::Admin(Ok(Admin::Rules))) => self.rules(),
            Ok(Single::Exec) => self.execute().await,
            Ok(Single::Other(other)) => {
                handshake::answer(self, &other);
                if std::mem::take(&mut self.wrong_token) {
                    self.app.wrong_token(Some(self.peer), "resp").await;
                }
            }
        }
    }

    async fn peek(&mut self, request: &CheckRequest<'_>) {
        let decision = self.app.timed(self.app.limiter.peek(request)).await;
        match decision {
            Err(error) => self.fail(&error),
            decided => answer::decision(&mut self.replies, request, &decided),
        }
    }

    /// Ends the connection: its buffers are too large together with those of others.
    pub(super) fn refuse_for_room(&mut self) {
        self.app.refused_as_overloaded(&self.sender);
        self.replies.bytes = Vec::new();
        self.replies.error("BUSY", TOO_MUCH);
        self.closing = true;
    }

    /// Replies with an error of the limiter.
    fn fail(&mut self, error: &Error) {
        if answer::is_overload(error) {
            self.app.refused_as_overloaded(&self.sender);
        }
        answer::error(&mut self.replies, error);
    }

    async fn record(&mut self, record: &Check<'_>) {
        match self.app.timed(self.app.limiter.record(&record.request)).await {
            Ok(recorded) => answer::record(&mut self.replies, &recorded),
            Err(error) => self.fail(&error),
        }
    }

    async fn reset(&mut self, client: &str) {
        match self.app.reset(client).await {
            // `CL.THROTTLE`'s budget is reset all the same.
            Ok(()) | Err(Error::NotCovered) => {
                info!(client = self.app.logged(client), "a client was reset");
                self.replies.simple("OK");
            }
            Err(Error::StoreUnavailable { reason }) => {
                self.replies.error("ERR", format_args!("the store failed: {reason}"));
            }
            Err(error) => self.fail(&error),
        }
    }

    fn rules(&mut self) {
        let rules = self.app.limiter.rules();
        self.replies.array(rules.rules().len());
        rules.rules().iter().for_each(|rule| answer::rule(&mut self.replies, rule));
    }

    fn is_admin(&self) -> bool {
        self.token.as_ref().is_some_and(|token| self.app.is_admin_token(token.reveal().as_bytes()))
    }

    /// Checks the admin token. A wrong one revokes an earlier authentication.
    pub(super) fn authenticate(&mut self, token: &[u8]) -> bool {
        let valid = self.app.is_admin_token(token);
        self.token = valid.then(|| Secret::new(String::from_utf8_lossy(token).into_owned()));
        self.wrong_token = !valid;
        if !valid {
            let sentence =
                "invalid username-password pair or user is disabled; the password is the admin token";
            self.replies.error("WRONGPASS", sentence);
        }
        valid
    }

    /// `RESET`: restores the initial state.
    pub(super) fn reset_state(&mut self) {
        self.token = None;
        self.queue = None;
        self.name.clear();
        self.replies.version = Version::Two;
    }
}
