//! Connecting to a real Redis, and the keys found there: TLS, users, databases, prefixes, names,
//! expiry, the clock.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Cluster, Redis, Sentinels, until};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tollgate::{
    Algorithm, Clock as _, Decision, HOUR, Limit, Limiter, MINUTE, ManualClock, OnExpiry, Override, Request,
    Rule, RuleSet, SECOND, Store as _, Timestamp, TokioClock,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

fn limiter(store: RedisStore, limit: Limit) -> Limiter<RedisStore> {
    let builder = Limiter::builder(RuleSet::per_client(limit)).store(store).clock(TokioClock);
    builder.deadline(10 * SECOND).build().unwrap()
}

/// A check that Redis itself decides.
fn check(limiter: &Limiter<RedisStore>, client: &str) -> Decision {
    let decision = run(limiter.check_async(client)).unwrap();
    assert!(!decision.degraded(), "{:?}", limiter.store().status());
    decision
}

fn open(url: &str) -> Limiter<RedisStore> {
    limiter(RedisStore::open(url).unwrap(), Limit::fixed_window(10, HOUR))
}

/// Blocks are set, listed and lifted.
fn assert_administrable(limiter: &Limiter<RedisStore>) {
    let listed = || run(limiter.store().blocks(9, TokioClock.now())).unwrap().blocks.len();
    for client in ["a", "b"] {
        run(limiter.block(client, HOUR)).unwrap();
    }
    assert_eq!(listed(), 2);
    run(limiter.block("a", Duration::ZERO)).unwrap();
    run(limiter.reset("b")).unwrap();
    assert_eq!(listed(), 0);
}

/// The commands that docs/fleet.md tells operators to allow.
pub(crate) const COMMANDS: &str = "+eval +evalsha +time +get +set +append +del +pexpire +lrange +lset +ltrim +rpush \
     +hget +hmget +hgetall +hlen +hset +hdel +zcard +zrangebyscore +zrevrangebyscore +zadd +zrem";

#[test]
fn a_user_needs_only_the_commands_of_the_script_on_keys_with_the_prefix() {
    let redis = Redis::start(&["--requirepass", "everything"]);
    let root =
        |arguments: &[&str]| redis.cli(&[&["--no-auth-warning", "-a", "everything"], arguments].concat());
    let mut acl = vec!["acl", "setuser", "tollgate", "on", ">p@ss:w/rd", "~tollgate:*", "-@all"];
    acl.extend(COMMANDS.split(' '));
    assert_eq!(root(&acl), "OK");
    let url = format!("redis://tollgate:p%40ss%3Aw%2Frd@127.0.0.1:{}", redis.port);
    for limit in
        ["10/month", "10/h fixed", "10/h sliding", "10/h log", "10/h", "5 refill 5/h reserve 5 refill 1/h"]
    {
        let limiter = limiter(RedisStore::open(&url).unwrap(), limit.parse().unwrap());
        assert!(check(&limiter, "a").allowed(), "{limit}");
        assert!(run(limiter.reset("a")).is_ok());
        let reservation =
            run(limiter.reserve(Request::client("a").cost(3), MINUTE, OnExpiry::GiveBack)).unwrap();
        assert!(!reservation.decision().degraded(), "{:?}", limiter.store().status());
        run(reservation.renew(MINUTE)).unwrap();
        assert!(!check(&limiter, "a").degraded());
        assert_eq!(run(reservation.settle(1)).unwrap().shortfall, 0);
        assert_eq!(limiter.stats().store_errors, 0);
        assert_administrable(&limiter);
        assert!(run(limiter.store().clear("per-client")).is_err());
    }
    assert_eq!(root(&["acl", "setuser", "tollgate", "+scan", "+unlink"]), "OK");
    let administrator = limiter(RedisStore::open(&url).unwrap(), Limit::fixed_window(10, HOUR));
    run(administrator.block("c", HOUR)).unwrap();
    assert!(run(administrator.store().clear("per-client")).unwrap() > 0);
    assert!(run(administrator.peek("c")).unwrap().allowed());
    let elsewhere = RedisStore::builder(&url).unwrap().prefix("other").build().unwrap();
    assert!(run(limiter(elsewhere, Limit::per_second(1)).check_async("a")).unwrap().degraded());
    for wrong in [format!("redis://tollgate:not-the-one@127.0.0.1:{}", redis.port), redis.url()] {
        let limiter = open(&wrong);
        assert!(run(limiter.check_async("a")).unwrap().degraded());
        let reason = limiter.store().status().down.unwrap();
        assert!(!reason.contains("not-the-one"), "{reason}");
    }
}

#[test]
fn in_a_cluster_a_user_also_needs_the_commands_that_list_the_slots() {
    let cluster = Cluster::start();
    // As in docs/fleet.md.
    let commands = format!("{COMMANDS} +cluster|slots +cluster|shards +asking +readonly");
    for node in &cluster.nodes {
        let mut acl = vec!["acl", "setuser", "tollgate", "on", ">secret", "~tollgate:*", "-@all"];
        acl.extend(commands.split(' '));
        assert_eq!(node.cli(&acl), "OK");
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://tollgate:secret@");
    let limiter = open(&url);
    (0..20).for_each(|client| assert!(check(&limiter, &format!("client-{client}")).allowed()));
    assert_administrable(&limiter);
    let clear = || run(open(&url).store().clear("per-client"));
    assert!(clear().is_err());
    for node in &cluster.nodes {
        assert_eq!(node.cli(&["acl", "setuser", "tollgate", "+scan", "+unlink", "+ping"]), "OK");
    }
    assert_eq!(clear(), Ok(20));
}

#[test]
fn behind_sentinels_a_user_also_needs_role_and_sentinels_may_have_a_password() {
    let sentinels = Sentinels::start();
    let commands = format!("{COMMANDS} +role");
    for server in &sentinels.servers {
        let mut acl = vec!["acl", "setuser", "tollgate", "on", ">secret", "~tollgate:*", "-@all"];
        acl.extend(commands.split(' '));
        assert_eq!(server.cli(&acl), "OK");
    }
    // As in docs/fleet.md.
    let asks = "+sentinel|master +sentinel|get-master-addr-by-name +subscribe &+switch-master";
    for sentinel in &sentinels.sentinels {
        let mut user = vec!["acl", "setuser", "asks", "on", ">asking", "-@all"];
        user.extend(asks.split(' '));
        assert_eq!(sentinel.cli(&user), "OK");
        let secret = ["acl", "setuser", "default", "resetpass", ">of-the-sentinels"];
        assert_eq!(sentinel.cli(&secret), "OK");
    }
    let url = sentinels.url().replace("redis+sentinel://", "redis+sentinel://tollgate:secret@");
    assert!(check(&open(&format!("{url}?sentinel_password=of-the-sentinels")), "a").allowed());
    let asking = format!("{url}?sentinel_user=asks&sentinel_password=asking");
    assert!(check(&open(&asking), "a").allowed());
    assert!(run(open(&url).check_async("a")).unwrap().degraded());
}

#[test]
fn databases_and_prefixes_are_independent() {
    let redis = Redis::start(&[]);
    let third = open(&format!("{}/3", redis.url()));
    assert_eq!(check(&third, "alice").remaining(), 9);
    assert_eq!(check(&open(&redis.url()), "alice").remaining(), 9);
    let other = RedisStore::builder(&redis.url()).unwrap().prefix("staging").build().unwrap();
    assert_eq!(check(&limiter(other, Limit::fixed_window(10, HOUR)), "alice").remaining(), 9);
    assert_eq!(redis.cli(&["-n", "3", "keys", "tollgate:*per-client*"]), "tollgate:{alice}:per-client:0");
    assert_eq!(redis.cli(&["keys", "staging:*per-client*"]), "staging:{alice}:per-client:0");
}

#[test]
fn a_store_connects_over_a_unix_socket() {
    let redis = Redis::start(&["--unixsocket", "redis.sock"]);
    let socket = redis.directory.join("redis.sock");
    assert!(check(&open(&format!("unix://{}", socket.display())), "a").allowed());
}

/// Certificates for `127.0.0.1`, as files.
pub(crate) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("tollgate-tls-{}", crate::common::unique()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the issuer");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        let certificates = Self { directory };
        ["server", "client"].iter().for_each(|name| certificates.issue(name, &issuer));
        certificates
    }

    /// A certificate and its key: `name.pem` and `name.key`.
    fn issue(&self, name: &str, issuer: &CertifiedIssuer<'_, KeyPair>) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        std::fs::write(self.directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// A server that asks for a client's certificate.
    pub(crate) fn server(&self) -> Redis {
        let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| self.path(name));
        let settings = ["--port", "0", "--tls-port", "PORT", "--tls-cert-file", &certificate];
        let others = ["--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        Redis::start(&[&settings[..], &others[..]].concat())
    }

    pub(crate) fn url(&self, port: u16) -> String {
        let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.path(name));
        format!("rediss://127.0.0.1:{port}?ca={ca}&cert={certificate}&key={key}")
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn tls_with_a_certificate_on_each_side() {
    let certificates = Certificates::new();
    let redis = certificates.server();
    assert!(check(&open(&certificates.url(redis.port)), "a").allowed());
    let host = format!("127.0.0.1:{}", redis.port);
    let [ca, client, client_key] = ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name));
    let refused = [
        format!("rediss://{host}?ca={ca}"),
        format!("rediss://{host}?cert={client}&key={client_key}"),
        format!("redis://{host}"),
    ];
    for url in refused {
        let limiter = open(&url);
        assert!(run(limiter.check_async("a")).unwrap().degraded(), "{url}");
        assert!(limiter.store().status().down.is_some());
    }
}

#[test]
fn b6_a_key_expires_when_its_client_is_idle() {
    let redis = Redis::start(&[]);
    let limits = ["5/100ms fixed", "5/50ms sliding", "5/100ms log", "5/100ms", "3/100ms burst 5"];
    for limit in limits {
        let limiter = limiter(RedisStore::open(&redis.url()).unwrap(), limit.parse().unwrap());
        assert_eq!(check(&limiter, "a").remaining(), 4);
        let left: i64 = redis.cli(&["pttl", "tollgate:{a}:per-client:0"]).parse().unwrap();
        // Redis answers 0 in the last millisecond, -2 of an expired key, and -1 of one that never
        // expires.
        assert!(left <= 101 && left != -1, "{limit}: {left} ms");
        until("the key has expired", || redis.cli(&["exists", "tollgate:{a}:per-client:0"]) == "0");
        assert_eq!(check(&limiter, "a").remaining(), 4, "{limit}");
        run(limiter.refund("a")).unwrap();
        assert_eq!(redis.cli(&["exists", "tollgate:{a}:per-client:0"]), "0", "{limit}: all units given back");
    }
    let limiter = limiter(RedisStore::open(&redis.url()).unwrap(), "5/10ms".parse().unwrap());
    run(limiter.block("a", TokioClock.now().saturating_add(HOUR))).unwrap();
    let left: i64 = redis.cli(&["pttl", "tollgate:{a}:per-client:0"]).parse().unwrap();
    assert!(left > 3_500_000, "a block is not idle: {left}");
}

#[test]
fn decisions_use_the_servers_clock_not_the_callers() {
    let redis = Redis::start(&[]);
    let wrong = ManualClock::at(Timestamp::from_secs(1_000_000_000));
    let store = RedisStore::builder(&redis.url()).unwrap().remember_denials(Duration::ZERO).build().unwrap();
    let rules = RuleSet::per_client(Limit::fixed_window(2, HOUR));
    let astray = Limiter::builder(rules.clone())
        .store(store.clone())
        .clock(wrong.clone())
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    let right = Limiter::builder(rules).store(store).clock(TokioClock).deadline(10 * SECOND).build().unwrap();
    let first = run(astray.check_async("a")).unwrap();
    wrong.advance(100 * HOUR);
    let second = run(right.check_async("a")).unwrap();
    let third = run(astray.check_async("a")).unwrap();
    assert!(first.allowed() && second.allowed() && !third.allowed());
    assert!(first.now() <= second.now() && second.now() <= third.now());
    assert!(third.now().since(first.now()) < MINUTE);
    // A block lasts for a duration or until a date, both by the server's clock.
    run(astray.block("b", HOUR)).unwrap();
    run(astray.block("c", first.now().saturating_add(HOUR))).unwrap();
    for client in ["b", "c"] {
        let wait = run(right.peek(client)).unwrap().retry_after().unwrap();
        assert!(wait > HOUR - MINUTE && wait <= HOUR, "{wait:?}");
    }
}

#[test]
fn names_in_redis_are_readable_and_no_two_budgets_share_one() {
    let redis = Redis::start(&[]);
    let rules = RuleSet::new([
        Rule::new("global", Limit::per(100, HOUR)),
        Rule::new("per client", [Limit::per(10, HOUR), Limit::fixed_window(20, HOUR)]).key(["client"]),
        Rule::new("both", Limit::per(10, HOUR)).key(["client", "path"]),
        Rule::inline("inline").key(["client"]),
    ]);
    let on_post =
        Override::new("both", Limit::per(5, HOUR)).matching("method", "POST]").matching("path", "/x*");
    let rules = rules.unwrap().with_overrides([on_post]);
    let store = RedisStore::open(&redis.url()).unwrap();
    let limiter = Limiter::builder(rules.unwrap())
        .store(store)
        .clock(TokioClock)
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    for (client, path) in [("*", "/"), ("a,b", "c"), ("a", "b,c"), ("2001:db8::/64", "/x")] {
        let attributes = [("client", client), ("path", path)];
        assert!(!run(limiter.check_async(Request::new(&attributes))).unwrap().degraded());
    }
    let post = [("client", "p"), ("path", "/x"), ("method", "POST]")];
    assert!(run(limiter.check_async(Request::new(&post).only("both"))).unwrap().allowed());
    for limit in [Limit::per_hour(10), Limit::fixed_window(10, HOUR)] {
        let limit = limiter.inline(limit).unwrap();
        assert!(run(limiter.check_async(Request::client("i").under("inline", &limit))).unwrap().allowed());
    }
    let names = redis.cli(&["keys", "tollgate:*:*:[0-9]"]);
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    let expected = [
        "tollgate:{%2A,/}:both:0",
        "tollgate:{%2A}:per client:0",
        "tollgate:{%2A}:per client:1",
        "tollgate:{*}:global:0",
        "tollgate:{2001:db8::/64,/x}:both:0",
        "tollgate:{2001:db8::/64}:per client:0",
        "tollgate:{2001:db8::/64}:per client:1",
        "tollgate:{a%2Cb,c}:both:0",
        "tollgate:{a%2Cb}:per client:0",
        "tollgate:{a%2Cb}:per client:1",
        "tollgate:{a,b%2Cc}:both:0",
        "tollgate:{a}:per client:0",
        "tollgate:{a}:per client:1",
        "tollgate:{i}:inline:0",
        "tollgate:{i}[inline hour]:inline:0",
        "tollgate:{p,/x}[method=POST%5D,path=/x*]:both:0",
    ];
    assert_eq!(names, expected);
}

#[test]
fn c9_a_window_of_the_calendar_is_that_of_redis_clock() {
    // The caller's clock is wrong by years. It hands in the wrong windows, and the script asks for
    // the right ones.
    let redis = Redis::start(&[]);
    for wrong in [Timestamp::from_secs(1_000_000_000), Timestamp::from_secs(4_000_000_000)] {
        for notation in ["10/hour at Asia/Kathmandu", "10/day at Europe/Berlin", "10/month", "10/year"] {
            let limit: Limit = notation.parse().unwrap();
            let Algorithm::CalendarWindow { unit, zone, .. } = limit.algorithm() else {
                panic!("not a calendar window")
            };
            let prefix = crate::common::unique();
            let store = RedisStore::builder(&redis.url()).unwrap().prefix(&prefix).build().unwrap();
            let builder = Limiter::builder(RuleSet::per_client(limit)).store(store);
            let limiter = builder.clock(ManualClock::at(wrong)).deadline(10 * SECOND).build().unwrap();
            for left in [9, 8] {
                let decision = check(&limiter, "a");
                let window = zone.window(unit, decision.now());
                assert_eq!((decision.remaining(), decision.reset_at()), (left, window.end), "{notation}");
            }
        }
    }
}

/// The script counts in doubles: a plan, its debt and its credits must be exact together.
#[test]
fn d3_an_overflow_with_more_units_than_the_script_counts_is_refused() {
    let build = |units| {
        let plan = Rule::new("plan", Limit::fixed_window(units, HOUR)).overflow("credits");
        let rules = RuleSet::new([plan, Rule::new("credits", Limit::fixed_window(units, HOUR))]).unwrap();
        let store = RedisStore::builder("redis://127.0.0.1:1").unwrap().build().unwrap();
        Limiter::builder(rules).store(store).clock(TokioClock).build()
    };
    assert!(build(700_000_000_000_000).is_ok());
    let error = build(999_999_999_999_999).unwrap_err().to_string();
    assert!(error.contains("which Redis cannot count exactly"), "{error}");
}
