//! The commands that ask a running server: explain, client, blocks.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use tollgate::{Limit, MAX_COUNT, parse_duration};

use super::print;
use crate::remote::Target;
use crate::remote::clients::{Action, administer, blocks};
use crate::remote::explain::{attribute, explain};
use crate::remote::top::top;

/// A request to explain.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The request's attributes
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// Cost in units
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_COUNT))]
    cost: u64,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A client, and what to do with it.
#[derive(Debug, Args)]
pub(super) struct Client {
    #[command(subcommand)]
    action: ClientAction,
}

#[derive(Debug, Subcommand)]
enum ClientAction {
    /// Show what each rule has left: exit 0 if the next request is admitted, 1 if it is denied
    Show {
        #[command(flatten)]
        of: Of,
    },
    /// Deny a client everything for a while
    Block {
        #[command(flatten)]
        of: Of,
        /// For how long, such as 10m
        #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = duration)]
        span: String,
    },
    /// Lift a block
    Unblock {
        #[command(flatten)]
        of: Of,
    },
    /// Forget a client's usage, block and reservations
    Reset {
        #[command(flatten)]
        of: Of,
    },
    /// Give a client limits of its own on this server, or take them back
    Limit {
        #[command(flatten)]
        of: Of,
        /// The limits that apply instead, such as "100/s burst 200"
        #[arg(value_name = "LIMIT", required_unless_present = "clear", conflicts_with = "clear")]
        limits: Vec<Limit>,
        /// The rule whose limits they replace
        #[arg(long, required_unless_present = "clear")]
        rule: Option<String>,
        /// Let the rule's limits apply again: one rule's, or all
        #[arg(long)]
        clear: bool,
    },
}

#[derive(Debug, Args)]
struct Of {
    /// Client name
    name: String,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The blocked clients.
#[derive(Debug, Args)]
pub(super) struct Blocks {
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The live view.
#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    target: Target,
}

impl Top {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        top(self.target.administered()?).map(|()| ExitCode::SUCCESS)
    }
}

impl Explain {
    /// Exit code 0 if the request is admitted, 1 if it is denied.
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let remote = self.target.administered()?;
        let mut attributes = std::collections::BTreeMap::new();
        for (name, value) in self.attributes {
            if attributes.insert(name.clone(), value).is_some() {
                return Err(format!("the attribute {name:?} is given twice; give it once"));
            }
        }
        let explanation = explain(&remote, &attributes, self.cost, self.json)?;
        print(&explanation.text);
        Ok(ExitCode::from(u8::from(!explanation.allowed)))
    }
}

impl Client {
    /// Exit code 1 if `show` finds that the next request is denied.
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let (Of { name, json, target }, action) = match self.action {
            ClientAction::Show { of } => (of, Action::Show),
            ClientAction::Block { of, span } => (of, Action::Block { span }),
            ClientAction::Unblock { of } => (of, Action::Unblock),
            ClientAction::Reset { of } => (of, Action::Reset),
            ClientAction::Limit { of, clear: true, rule, .. } => (of, Action::ClearLimits { rule }),
            ClientAction::Limit { of, limits, rule, .. } => {
                let limits = limits.iter().map(Limit::to_string).collect();
                (of, Action::SetLimit { rule: rule.unwrap_or_default(), limits })
            }
        };
        let outcome = administer(&target.administered()?, &name, &action, json)?;
        print(&outcome.text);
        Ok(ExitCode::from(u8::from(!outcome.admits)))
    }
}

impl Blocks {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        print(&blocks(&self.target.administered()?, self.json)?);
        Ok(ExitCode::SUCCESS)
    }
}

fn duration(written: &str) -> Result<String, tollgate::Error> {
    parse_duration(written).map(|_| written.to_owned())
}
