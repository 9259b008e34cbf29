//! Limits that administrators set for single clients while the server runs.
//!
//! A data directory keeps them. In memory, and with Redis, they end with the server. No other
//! server learns of them: Redis holds budgets, not rules.

use std::sync::Arc;

use tollgate::{CLIENT, Error, Limits, Override, Rule, RuleName, RuleSet};
use tracing::warn;

use super::App;

mod file;

pub(super) use file::load;

/// The most per-client limits.
const CLIENT_LIMITS_MAX: usize = 10_000;

/// A per-client limit.
#[derive(Clone, Debug)]
pub(super) struct ClientLimit {
    client: String,
    pub(super) replacement: Override,
}

impl ClientLimit {
    fn new(client: String, rule: &str, limits: Limits) -> Self {
        let replacement = Override::new(rule, limits).exactly(CLIENT, &client);
        Self { client, replacement }
    }
}

impl App {
    /// How far per-client limits reach, in words.
    pub(crate) fn client_limits_reach(&self) -> &'static str {
        match self.fixed.store.data_directory() {
            Some(_) => "this server, also after a restart",
            None => "this server, until it stops",
        }
    }

    /// Checks that a rule is keyed by client alone, so that a client can have another limit.
    ///
    /// # Errors
    /// [`Error::UnknownRule`] if it is not, or does not exist.
    pub(crate) fn per_client(&self, rule: &str) -> Result<(), Error> {
        let known = is_per_client(&self.rules().file, rule);
        if known { Ok(()) } else { Err(Error::UnknownRule { rule: rule.into() }) }
    }

    /// Whether the file has a rule called `rule`.
    pub(crate) fn has_rule(&self, rule: &str) -> bool {
        self.rules().file.rules().iter().any(|known| known.name().as_str() == rule && is_listed(known))
    }

    /// The limits that were set for one client, by rule.
    pub(crate) fn client_limits(&self, client: &str) -> Vec<(RuleName, Limits)> {
        let rules = self.rules();
        let own = rules.client_limits.iter().filter(|limit| limit.client == client);
        own.map(|limit| (limit.replacement.rule(), limit.replacement.limits())).collect()
    }

    /// Replaces a rule's limits for one client. Blocks while a data directory is written.
    ///
    /// # Errors
    /// [`Error::UnknownRule`] if the rule does not exist or is not keyed by client alone, and
    /// [`Error::StoreUnavailable`] if the data directory cannot be written. Then nothing changes.
    pub(crate) fn set_client_limit(&self, client: &str, rule: &str, limits: Limits) -> Result<(), Error> {
        self.change_client_limits(client, Some(rule), Some(limits))
    }

    /// Removes the limits of one client, for one rule or all.
    ///
    /// # Errors
    /// As [`set_client_limit`](Self::set_client_limit).
    pub(crate) fn clear_client_limits(&self, client: &str, rule: Option<&str>) -> Result<(), Error> {
        self.change_client_limits(client, rule, None)
    }

    fn change_client_limits(
        &self,
        client: &str,
        rule: Option<&str>,
        limits: Option<Limits>,
    ) -> Result<(), Error> {
        let mut rules = self.rules();
        if let Some(unknown) = rule.filter(|rule| !is_per_client(&rules.file, rule)) {
            return Err(Error::UnknownRule { rule: unknown.into() });
        }
        let mut client_limits = rules.client_limits.clone();
        let replaced = |client_limits: &ClientLimit| {
            client_limits.client == client
                && rule.is_none_or(|rule| client_limits.replacement.rule().as_str() == rule)
        };
        client_limits.retain(|client_limits| !replaced(client_limits));
        if let (Some(rule), Some(limits)) = (rule, limits) {
            if client_limits.len() >= CLIENT_LIMITS_MAX {
                let reason = "below 10000; put permanent limits in the configuration file";
                return Err(Error::InvalidConfig {
                    field: "the number of per-client limits",
                    value: client_limits.len().to_string(),
                    reason,
                });
            }
            client_limits.push(ClientLimit::new(client.into(), rule, limits));
        }
        let publish = |client_limits: &[ClientLimit]| {
            self.publish(&rules.file, client_limits, Arc::clone(&self.snapshot().settings))
        };
        publish(&client_limits)?;
        let saved = self.fixed.store.data_directory().map(|directory| file::save(directory, &client_limits));
        if let Some(Err(error)) = saved {
            warn!(%error, "a per-client limit was not changed: the data directory cannot be written");
            publish(&rules.client_limits)?;
            let reason = format!("the data directory cannot be written: {error}");
            return Err(Error::StoreUnavailable { reason });
        }
        rules.client_limits = client_limits;
        Ok(())
    }
}

pub(super) fn is_per_client(rules: &RuleSet, name: &str) -> bool {
    let is =
        |rule: &Rule| rule.name().as_str() == name && rule.key_attributes() == [CLIENT] && is_listed(rule);
    rules.rules().iter().any(is)
}

/// Whether a rule is one of the configuration's, and not of a descriptor.
const fn is_listed(rule: &Rule) -> bool {
    !rule.is_on_demand() || rule.is_overflow()
}
