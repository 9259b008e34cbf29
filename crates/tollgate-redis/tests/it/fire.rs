//! Under fire: callers who leave, batches, and keys with many holds cost nobody else anything.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Redis, direct, unique};
use futures_util::future::join_all;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tollgate::{
    Algorithm, Applied, Caller, Charge, Clock as _, Error, HOUR, HoldId, Limit, Limiter, MINUTE, ManualClock,
    OnExpiry, Op, Request, Rule, RuleSet, Store, StoreError, Timestamp, TokioClock,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

/// Redis is this far away.
const DISTANCE: Duration = Duration::from_millis(6);
/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = MINUTE;
/// Of the client who stands by.
const LIMIT: u64 = 10;
/// Of the clients who leave.
const MANY: u64 = 1_000_000;

/// A proxy in front of a Redis, which forwards each way after `delay`, once `is_open`. Returns its
/// URL.
async fn proxy(redis: &Redis, delay: Duration, is_open: watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let upstream = redis.port;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut is_open = is_open.clone();
            tokio::spawn(async move {
                is_open.wait_for(|open| *open).await.unwrap();
                let server = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(forward(from_client, to_server, delay));
                forward(from_server, to_client, delay).await;
            });
        }
    });
    url
}

async fn forward(from: OwnedReadHalf, to: OwnedWriteHalf, delay: Duration) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Timestamp, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, mut bytes)) = receiver.recv().await {
            TokioClock.sleep_until(at).await;
            while !bytes.is_empty() {
                to.writable().await.unwrap();
                match to.try_write(&bytes) {
                    Ok(written) => drop(bytes.drain(..written)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    loop {
        from.readable().await.unwrap();
        match from.try_read(&mut buffer) {
            Ok(read @ 1..) => {
                let _ = sender.send((TokioClock.now().saturating_add(delay), buffer[..read].to_vec()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A store that counts the charges in flight to it.
struct Counting {
    store: RedisStore,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

impl Store for Counting {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let in_flight = self.in_flight.fetch_add(charges.len(), Ordering::Relaxed) + charges.len();
        self.most.fetch_max(in_flight, Ordering::Relaxed);
        let applied = self.store.apply(op, charges, now).await;
        self.in_flight.fetch_sub(charges.len(), Ordering::Relaxed);
        applied
    }

    async fn ready(&self) {
        self.store.ready().await;
    }
}

fn store(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).unwrap().prefix(&format!("fire-{}", unique()));
    builder.deadline(DEADLINE).connect_timeout(DEADLINE).remember_denials(Duration::ZERO).build().unwrap()
}

/// The client `bystander` has a small limit, every other client the limits of a busy one.
fn limiter<S: Store>(store: S) -> Limiter<S> {
    let busy = ["50/h fixed", "1000000/h", "1000000/h sliding", "1000000/d fixed", "1000000/d"];
    let busy: Vec<Limit> = busy.iter().map(|limit| limit.parse().unwrap()).collect();
    let rules = RuleSet::new([
        Rule::new("bystander", Limit::fixed_window(LIMIT, HOUR)).matching("is", "bystander").key(["client"]),
        Rule::new("busy", busy).matching("is", "busy").key(["client"]),
        Rule::new("leaving", Limit::fixed_window(MANY, HOUR)).matching("is", "leaving").key(["client"]),
    ]);
    Limiter::builder(rules.unwrap()).store(store).clock(TokioClock).deadline(DEADLINE).build().unwrap()
}

/// A client checks until the others have ended, and at least 30 times. It is admitted exactly its
/// limit, and never degraded nor refused.
async fn stand_by<S: Store>(limiter: &Limiter<S>, others: impl Future<Output = ()>) {
    let mut others = std::pin::pin!(others);
    let (mut admitted, mut checks, mut have_ended) = (0, 0, false);
    while !have_ended || checks < 30 {
        let attributes = [("is", "bystander"), ("client", "b")];
        let request = Request::new(&attributes).caller(Caller::new("the bystander"));
        let mut check = std::pin::pin!(limiter.check_async(request));
        let decision = std::future::poll_fn(|context| {
            if !have_ended {
                have_ended = others.as_mut().poll(context).is_ready();
            }
            check.as_mut().poll(context)
        });
        let decision = decision.await.unwrap();
        assert!(!decision.degraded(), "check {checks}: {decision:?}");
        admitted += u64::from(decision.allowed());
        checks += 1;
    }
    assert_eq!(admitted, LIMIT, "of {checks} checks");
}

fn always() -> watch::Receiver<bool> {
    watch::channel(true).1
}

#[test]
fn e4_callers_who_leave_are_no_evidence_and_what_they_charged_stays_charged() {
    const CALLS: u64 = 800;
    let redis = Redis::start(&[]);
    for delay in [DISTANCE, Duration::ZERO] {
        run(async {
            let limiter = limiter(store(&proxy(&redis, delay, always()).await));
            let attributes = [("is", "leaving"), ("client", "a")];
            let left = AtomicU64::new(0);
            let leaving = async {
                for _ in 0..CALLS / 8 {
                    let calls = (0..8).map(async |call| {
                        let check = limiter.check_async(Request::new(&attributes));
                        let patience = Duration::from_millis(1 + call % 3);
                        let answer = tokio::time::timeout(patience, check).await;
                        left.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
                        assert!(!answer.is_ok_and(|decision| decision.unwrap().degraded()));
                    });
                    join_all(calls).await;
                }
            };
            stand_by(&limiter, leaving).await;
            assert!(delay.is_zero() || left.into_inner() == CALLS, "nobody waits for 12 ms");
            let all_charged = async {
                while limiter.peek(Request::new(&attributes)).await.unwrap().remaining() > MANY - CALLS {}
            };
            tokio::time::timeout(DEADLINE, all_charged).await.expect("each call runs to its end");
            let peek = limiter.peek(Request::new(&attributes)).await.unwrap();
            assert_eq!(peek.remaining(), MANY - CALLS, "each call is charged once");
            assert_eq!((limiter.store().status().trips, limiter.stats().store_errors), (0, 0));
        });
    }
}

/// A batch of checks of one key, in the parts in which the server decides them, and perhaps with
/// many holds of that key.
fn flood(holds: u64, checks: usize) {
    let redis = Redis::start(&[]);
    run(async {
        let store = store(&redis.url());
        let in_flight_max = store.in_flight_max();
        let limiter = limiter(Counting { store, in_flight: AtomicUsize::new(0), most: AtomicUsize::new(0) });
        let attributes = [("is", "busy"), ("client", "a")];
        let request = Request::new(&attributes).caller(Caller::new("the flood"));
        for _ in 0..holds {
            let hold = limiter.reserve(request.cost(0), HOUR, OnExpiry::GiveBack).await.unwrap();
            assert!(hold.decision().allowed() && hold.detach().is_some());
        }
        let admitted = AtomicU64::new(0);
        let flooding = async {
            for part in (0..checks).collect::<Vec<_>>().chunks(512) {
                for decision in join_all(part.iter().map(|_| limiter.check_async(request))).await {
                    let decision = decision.unwrap();
                    assert!(!decision.degraded());
                    admitted.fetch_add(u64::from(decision.allowed()), Ordering::Relaxed);
                }
            }
        };
        stand_by(&limiter, flooding).await;
        assert_eq!(admitted.into_inner(), 50);
        let most = limiter.store().most.load(Ordering::Relaxed);
        assert!((5..=in_flight_max).contains(&most), "{most} charges were in flight");
    });
}

#[test]
fn e4_a_batch_of_one_key_admits_its_limit_and_leaves_others_exact() {
    flood(0, 10_000);
}

#[test]
fn e4_a_batch_of_one_key_with_many_holds_leaves_others_exact() {
    flood(64, 4 * 512);
}

/// More is asked at once than may wait: whoever asks for it is refused, and nothing is admitted
/// because of it.
#[test]
fn e4_a_batch_that_is_larger_than_the_queue_is_refused_and_leaves_others_exact() {
    let redis = Redis::start(&[]);
    run(async {
        let limiter = limiter(store(&redis.url()));
        let attributes = [("is", "busy"), ("client", "a")];
        let request = Request::new(&attributes).caller(Caller::new("the flood"));
        let flooding = async {
            let decisions = join_all((0..5_000).map(|_| limiter.check_async(request))).await;
            let is_overloaded =
                |decision: &&Result<_, Error>| matches!(decision, Err(Error::Overloaded { .. }));
            assert!(decisions.iter().filter(is_overloaded).count() > 0);
            let decided: Vec<_> = decisions.into_iter().flatten().collect();
            assert!(decided.iter().all(|decision| !decision.degraded()));
            assert_eq!(decided.iter().filter(|decision| decision.allowed()).count(), 50);
        };
        stand_by(&limiter, flooding).await;
    });
}

/// By the manual clock an hour passes while the connection is made.
#[test]
fn e4_connecting_is_not_charged_to_the_first_check() {
    let redis = Redis::start(&[]);
    run(async {
        let (open, is_open) = watch::channel(false);
        let store = store(&proxy(&redis, Duration::ZERO, is_open).await);
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let rules = RuleSet::per_client(Limit::per_second(10));
        let limiter =
            Limiter::builder(rules).store(store).clock(clock.clone()).deadline(DEADLINE).build().unwrap();
        let mut check = std::pin::pin!(limiter.check_async("a"));
        assert!(futures_util::poll!(check.as_mut()).is_pending());
        clock.advance(HOUR);
        assert!(futures_util::poll!(check.as_mut()).is_pending());
        open.send(true).unwrap();
        let decision = check.await.unwrap();
        assert!(!decision.degraded() && decision.remaining() == 9, "{decision:?}");
    });
}

/// Each name is the first of a store.
#[test]
fn e4_the_first_check_of_a_store_is_not_degraded_whatever_the_name() {
    let redis = Redis::start(&[]);
    for name in 0..1_000 {
        let rules = RuleSet::per_client(Limit::per_second(10));
        let store = RedisStore::open(&redis.url()).unwrap();
        let deadline = Duration::from_millis(250);
        let limiter =
            Limiter::builder(rules).store(store).clock(TokioClock).deadline(deadline).build().unwrap();
        let decision = run(limiter.check_async(format!("name-{name}").as_str())).unwrap();
        assert!(!decision.degraded(), "name-{name}: {:?}", limiter.store().status());
    }
}

/// Commands that Redis ran, those of scripts included.
pub(crate) fn commands(redis: &Redis) -> u64 {
    let stats = redis.cli(&["info", "commandstats"]);
    let calls = |line: &str| {
        let is_counted = !line.starts_with("cmdstat_info");
        let calls = line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        calls.filter(|_| is_counted)
    };
    stats.lines().filter_map(calls).sum()
}

/// Counted in commands, not in time: of a peek, of a denied check, and of a hold and its end.
#[test]
fn c5_the_cost_of_a_check_does_not_grow_with_holds() {
    let redis = Redis::start(&[]);
    let limits = ["2000/h", "2000/h fixed", "2000/h sliding", "2000/h log", "1002 concurrent"];
    for limit in limits.map(|limit| limit.parse::<Limit>().unwrap()) {
        let is_slots = matches!(limit.algorithm(), Algorithm::Concurrent { .. });
        let limiter = Limiter::builder(RuleSet::per_client(limit))
            // No probe is among the commands.
            .store(direct(&redis.url()).probe_interval(HOUR).build().unwrap())
            .clock(ManualClock::at(Timestamp::from_secs(1_800_000_000)))
            .deadline(HOUR)
            .build()
            .unwrap();
        let hold = || match is_slots {
            true => run(limiter.acquire("a", HOUR)).unwrap().detach().unwrap(),
            false => run(limiter.reserve("a", HOUR, OnExpiry::GiveBack)).unwrap().detach().unwrap(),
        };
        let cost_of = |act: &dyn Fn()| {
            let before = commands(&redis);
            act();
            commands(&redis) - before
        };
        let costs = || {
            [
                cost_of(&|| assert!(run(limiter.peek("a")).unwrap().allowed())),
                cost_of(&|| {
                    let peek = run(limiter.peek(Request::client("a").cost(2_000))).unwrap();
                    assert_eq!(peek.allowed(), is_slots, "one check takes one slot");
                }),
                cost_of(&|| assert!(run(limiter.settle(hold(), "a")).is_ok())),
            ]
        };
        let mut held = 0;
        let [one, hundred, thousand] = [1, 100, 1_000].map(|holds| {
            (held..holds).for_each(|_| assert_ne!(hold(), HoldId(0)));
            held = holds;
            costs()
        });
        assert_eq!(hundred, thousand, "{limit}");
        // A retry time may need the second page of holds.
        let more = one.iter().zip(&thousand).map(|(one, thousand)| thousand - one);
        assert!(more.max().is_some_and(|more| more <= 4), "{limit}: {one:?}, {thousand:?}");
    }
}
