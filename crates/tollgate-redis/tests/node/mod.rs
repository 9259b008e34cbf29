//! A node under test: a limiter with one rule per failure policy, on one store.
#![allow(dead_code, reason = "each test file uses a part of this module")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::{Decision, FailurePolicy, HOUR, Limit, Limiter, Request, Rule, RuleSet, TokioClock};
use tollgate_redis::{Change, RedisStore};
use tollgate_testkit::run;

use crate::common::{unique, until};

/// A limiter with one rule per failure policy. The attribute `policy` of a request selects the
/// rule.
pub(crate) struct Node {
    pub(crate) limiter: Limiter<RedisStore>,
    changes: Arc<Mutex<Vec<Change>>>,
}

pub(crate) const LIMIT: u64 = 8;

/// More than a healthy Redis takes on a busy machine.
const DEADLINE: Duration = Duration::from_millis(250);

impl Node {
    pub(crate) fn new(url: &str) -> Self {
        Self::with_limit(url, Limit::fixed_window(LIMIT, HOUR))
    }

    pub(crate) fn with_limit(url: &str, limit: Limit) -> Self {
        Self::with(url, limit, DEADLINE, Duration::from_millis(50))
    }

    /// With a deadline of checks, and one of probes.
    pub(crate) fn with(url: &str, limit: Limit, deadline: Duration, probes: Duration) -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let recorded = changes.clone();
        let store = RedisStore::builder(url)
            .unwrap()
            .deadline(probes)
            .prefix(&format!("fail-{}", unique()))
            .remember_denials(Duration::ZERO)
            .on_change(move |change| recorded.lock().unwrap().push(change.clone()))
            .build()
            .unwrap();
        let rule = |name: &str, policy| {
            Rule::new(name, limit).matching("policy", name).key(["client"]).on_store_error(policy)
        };
        let rules = RuleSet::new([
            rule("open", FailurePolicy::Open),
            rule("closed", FailurePolicy::Closed),
            rule("local", FailurePolicy::Local),
        ]);
        let limiter = Limiter::builder(rules.unwrap())
            .store(store)
            .clock(TokioClock)
            .deadline(deadline)
            .local_share(0.25)
            .build()
            .unwrap();
        Self { limiter, changes }
    }

    pub(crate) fn check(&self, policy: &str, client: &str) -> Decision {
        let attributes = [("policy", policy), ("client", client)];
        // The timeout fails a check that hangs, instead of hanging the test.
        let check = async {
            tokio::time::timeout(Duration::from_secs(20), self.limiter.check_async(Request::new(&attributes)))
                .await
        };
        run(check).expect("no check hangs").unwrap()
    }

    /// Every check is decided by its failure policy.
    pub(crate) fn assert_degraded(&self) {
        let client = unique();
        let open = self.check("open", &client);
        assert!(open.allowed() && open.degraded(), "{open:?}");
        let closed = self.check("closed", &client);
        assert!(!closed.allowed() && closed.degraded(), "{closed:?}");
        let local: Vec<bool> = (0..LIMIT).map(|_| self.check("local", &client).allowed()).collect();
        let share = local.iter().filter(|allowed| **allowed).count();
        assert_eq!(share, 2, "a quarter of {LIMIT}, so that four servers admit {LIMIT}");
        assert!(self.check("local", &client).degraded());
    }

    /// Every check is decided by Redis, to the unit.
    pub(crate) fn assert_exact(&self) {
        for policy in ["open", "closed", "local"] {
            let client = unique();
            let decisions: Vec<Decision> = (0..=LIMIT).map(|_| self.check(policy, &client)).collect();
            assert!(decisions.iter().all(|decision| !decision.degraded()), "{decisions:?}");
            let admitted = decisions.iter().filter(|decision| decision.allowed()).count();
            assert_eq!(u64::try_from(admitted).unwrap(), LIMIT);
        }
    }

    /// Waits until Redis decides again, in a cluster every master: each learns of a failover by
    /// itself, and answers that the cluster is down until then.
    pub(crate) fn until_back(&self) {
        let clients = || (0..16).map(|client| format!("client-{client}"));
        until("Redis decides again", || {
            !self.check("open", "someone").degraded()
                && clients().all(|client| !self.check("open", &client).degraded())
        });
    }

    pub(crate) fn until_down(&self) {
        until("the circuit breaker is open", || self.limiter.store().status().down.is_some());
    }

    /// When the circuit breaker opened and closed.
    pub(crate) fn changes(&self) -> Vec<&'static str> {
        let word = |change: Change| match change {
            Change::Down { .. } => Some("down"),
            Change::Back => Some("back"),
            _ => None,
        };
        self.all_changes().into_iter().filter_map(word).collect()
    }

    pub(crate) fn all_changes(&self) -> Vec<Change> {
        self.changes.lock().unwrap().clone()
    }

    /// Why the circuit breaker is open, if it is.
    pub(crate) fn down(&self) -> Option<String> {
        self.limiter.store().status().down
    }
}
