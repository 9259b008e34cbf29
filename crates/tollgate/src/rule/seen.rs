//! Requests as the rules of a set see them.

use std::borrow::Cow;

use super::path::PATH;
use super::{Override, Paths, RuleSet};
use crate::Request;

impl RuleSet {
    /// Sets how the attribute `path` of requests is seen, and what the rules say of it: normalised
    /// by default, so that a client cannot spell a path around a rule.
    ///
    /// A pattern such as `/api/*` covers `/api` too, which is what `/api/` is normalised to.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Paths, Rule, RuleSet};
    ///
    /// let rules = RuleSet::new([Rule::new("login", Limit::per_minute(1)).matching("path", "/login")])?;
    /// let limiter = Limiter::builder(rules.clone()).build()?;
    /// assert!(limiter.check(&[("path", "/login")])?.allowed());
    /// assert!(!limiter.check(&[("path", "//%6Cogin")])?.allowed());
    ///
    /// let limiter = Limiter::builder(rules.with_paths(Paths::Raw)).build()?;
    /// assert!(limiter.check(&[("path", "/login")])?.allowed());
    /// assert!(limiter.check(&[("path", "//%6Cogin")])?.allowed(), "another path");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn with_paths(mut self, paths: Paths) -> Self {
        self.paths = paths;
        for rule in &mut self.rules {
            rule.matches.iter_mut().for_each(|condition| condition.see(paths));
        }
        for (overrides, rule) in self.overrides.iter_mut().zip(&self.rules) {
            let all = std::mem::take(overrides).all;
            for (mut replacement, _) in all {
                replacement.see(paths);
                overrides.push(replacement, &rule.key);
            }
        }
        self
    }

    /// How paths are seen.
    #[must_use]
    pub const fn paths(&self) -> Paths {
        self.paths
    }

    /// Calls `f` with a request as the rules see it: its path as their [setting](Self::with_paths)
    /// says. Every operation of a limiter does so by itself.
    #[inline]
    pub fn seeing<R>(&self, request: &Request<'_>, f: impl FnOnce(&Request<'_>) -> R) -> R {
        let path = if self.reads_path { request.get(PATH) } else { None };
        match path.filter(|_| !self.names_raw_path(request)).map(|path| self.paths.normalize(path)) {
            Some(Cow::Owned(path)) => {
                let attributes: Vec<(&str, &str)> = request.with_value(PATH, &path);
                f(&request.with_attributes(&attributes))
            }
            _ => f(request),
        }
    }

    /// Whether a request names a rule that sees paths as they are.
    fn names_raw_path(&self, request: &Request<'_>) -> bool {
        let named = request.only_rule().and_then(|only| self.rules.get(self.index(only)?));
        named.is_some_and(|rule| rule.raw_path)
    }

    /// Whether any rule or override reads an attribute.
    pub(super) fn reads(&self, name: &str) -> bool {
        let keys = self.rules.iter().flat_map(|rule| &rule.key);
        let matched = self.rules.iter().flat_map(|rule| &rule.matches).map(|condition| &condition.attribute);
        let replaced = self.overrides().flat_map(Override::attributes);
        keys.chain(matched).chain(replaced).any(|attribute| attribute == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Limiter, Rule, block_on};

    const LIMIT: Limit = Limit::per_hour(1);

    fn allows(limiter: &Limiter, path: &str) -> bool {
        limiter.check(&[("client", "a"), ("path", path)]).unwrap().allowed()
    }

    #[test]
    fn f5_a_rule_on_a_path_covers_every_spelling_of_it_and_has_one_budget_for_them() {
        let by_path = [
            Rule::new("login", LIMIT).matching("path", "/login"),
            Rule::new("login", LIMIT).matching("path", "//%6Cogin/"),
            Rule::new("login", LIMIT).key(["path"]),
            Rule::new("login", LIMIT).matching("path", "/login*").key(["path", "client"]),
        ];
        for rule in by_path {
            let limiter = Limiter::builder(RuleSet::new([rule.clone()]).unwrap()).build().unwrap();
            assert!(allows(&limiter, "/login"), "{rule:?}");
            for spelled in ["/login", "/%6Cogin", "//login", "/login/", "/login;x=1", "/lo%67in?y"] {
                assert!(!allows(&limiter, spelled), "{spelled} under {rule:?}");
            }
            let slow = block_on(limiter.peek(&[("client", "a"), ("path", "/x/../login")])).unwrap();
            assert!(!slow.allowed(), "the general path of the store, under {rule:?}");
        }
    }

    #[test]
    fn f5_a_pattern_of_a_directory_covers_the_directory() {
        let covers = |pattern: &str, path: &str| {
            let rules = RuleSet::new([Rule::new("r", LIMIT).matching("path", pattern)]).unwrap();
            let request = [("path", path)];
            rules.explain(&Request::new(&request)).all(|coverage| coverage.covers())
        };
        for path in ["/api", "/api/", "/api/x", "//api//x/", "/api?x"] {
            assert!(covers("/api/*", path) && covers("/x/..//api/*", path), "{path}");
        }
        assert!(!covers("/api/*", "/apis") && !covers("/api/*", "/api/.."));
        assert!(covers("/api*", "/apis") && covers("/*", "/") && covers("*", "/x/"));
    }

    #[test]
    fn f5_an_override_on_a_path_is_found_whatever_the_spelling_and_in_any_order_of_settings() {
        let other = |path: &str| Override::new("r", Limit::per_hour(7)).matching("path", path);
        let rules = || RuleSet::new([Rule::new("r", LIMIT)]).unwrap();
        let limit = |rules: RuleSet, path: &str| {
            let limiter = Limiter::builder(rules).build().unwrap();
            limiter.check(&[("path", path)]).unwrap().limits()[0].limit.capacity()
        };
        for pattern in ["/Upload/", "/Upload/*"] {
            let before = || rules().with_paths(Paths::Raw).with_overrides([other(pattern)]).unwrap();
            let after = || rules().with_overrides([other(pattern)]).unwrap();
            assert_eq!(limit(before(), "/Upload/"), 7);
            assert_eq!(limit(before(), "/upload"), 1);
            assert_eq!(limit(after(), "//Upload"), 7);
            assert_eq!(limit(after(), "/upload"), 1);
            assert_eq!(limit(after().with_paths(Paths::Raw), "//Upload"), 1);
            for folded in [before(), after()] {
                assert_eq!(limit(folded.with_paths(Paths::CaseInsensitive), "/upLOAD"), 7);
            }
            assert_eq!(after().with_paths(Paths::Raw), before(), "the given patterns are kept");
        }
    }

    #[test]
    fn f5_a_rule_on_demand_sees_paths_too() {
        let rules = RuleSet::new([Rule::new("r", LIMIT).key(["path"]).on_demand()]).unwrap();
        let limiter = Limiter::builder(rules).build().unwrap();
        let ask = |path| {
            let attributes = [("path", path)];
            limiter.check(Request::new(&attributes).only("r")).unwrap().allowed()
        };
        assert_eq!([ask("/a"), ask("/a/")], [true, false]);
        let rules = RuleSet::new([Rule::new("r", LIMIT).key(["path"]).on_demand().raw_path()]);
        limiter.set_rules(rules.unwrap()).unwrap();
        assert_eq!([ask("/b"), ask("/b/")], [true, true]);
    }
}
