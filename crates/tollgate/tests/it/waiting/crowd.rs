//! Futures that are polled when they were woken, and only then, on a manual clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tollgate::{Clock as _, ManualClock, Timestamp};
use tollgate_testkit::Random;

/// Whether a future was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Member<T> {
    /// `None` once it has ended.
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    woken: Arc<Flag>,
    is_busy: bool,
    answer: Option<(Timestamp, T)>,
}

/// Tasks of a runtime.
pub(super) struct Crowd<T> {
    clock: ManualClock,
    members: Vec<Member<T>>,
    /// The order in which those that were woken are polled; by default, they take turns.
    pub(super) order: Option<Random>,
    /// How often a future was polled.
    pub(super) polls: usize,
    /// The members in the order in which they ended.
    pub(super) ended: Vec<usize>,
}

impl<T> Crowd<T> {
    pub(super) fn new(clock: &ManualClock) -> Self {
        Self { clock: clock.clone(), members: Vec::new(), order: None, polls: 0, ended: Vec::new() }
    }

    /// Adds a future, and runs everybody until nobody is woken.
    pub(super) fn join(&mut self, future: impl Future<Output = T> + 'static) -> usize {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let future: Pin<Box<dyn Future<Output = T>>> = Box::pin(future);
        self.members.push(Member { future: Some(future), woken, is_busy: false, answer: None });
        self.settle();
        self.members.len() - 1
    }

    /// Drops a future, and runs the others.
    pub(super) fn leave(&mut self, index: usize) {
        self.members[index].future = None;
        self.settle();
    }

    /// A busy task does not poll its future.
    pub(super) fn set_busy(&mut self, index: usize, is_busy: bool) {
        self.members[index].is_busy = is_busy;
        self.settle();
    }

    /// Runs everybody until nobody is woken.
    pub(super) fn settle(&mut self) {
        let polls_max = self.polls + 1_000 + 100 * self.members.len();
        loop {
            assert!(self.polls < polls_max, "they wake each other for ever");
            let is_woken = |member: &Member<T>| {
                member.future.is_some() && !member.is_busy && member.woken.0.load(Ordering::SeqCst)
            };
            let mut woken: Vec<usize> =
                (0..self.members.len()).filter(|index| is_woken(&self.members[*index])).collect();
            if woken.is_empty() {
                return;
            }
            if let Some(random) = &mut self.order {
                let chosen = random.below(woken.len().try_into().unwrap());
                woken = vec![woken[usize::try_from(chosen).unwrap()]];
            }
            woken.into_iter().for_each(|index| self.poll(index));
        }
    }

    fn poll(&mut self, index: usize) {
        let member = &mut self.members[index];
        let Some(future) = &mut member.future else { return };
        self.polls += 1;
        member.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&member.woken));
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            member.future = None;
            member.answer = Some((self.clock.now(), answer));
            self.ended.push(index);
        }
    }

    /// Moves the clock from one wake-up to the next, until then.
    pub(super) fn advance_to(&mut self, until: Timestamp) {
        self.settle();
        while let Some(next) = self.clock.next_wake().filter(|next| *next < until) {
            self.clock.set(next);
            self.settle();
        }
        self.clock.set(until);
        self.settle();
    }

    /// When a member ended, and how; `None` if it has not.
    pub(super) fn answer(&self, index: usize) -> Option<&(Timestamp, T)> {
        self.members[index].answer.as_ref()
    }

    /// The answers so far, with the members that they belong to.
    pub(super) fn answers(&self) -> impl Iterator<Item = (usize, &(Timestamp, T))> {
        let answered = self.members.iter().enumerate();
        answered.filter_map(|(index, member)| Some((index, member.answer.as_ref()?)))
    }

    /// Members that have neither ended nor left.
    pub(super) fn waiting(&self) -> usize {
        self.members.iter().filter(|member| member.future.is_some()).count()
    }
}
