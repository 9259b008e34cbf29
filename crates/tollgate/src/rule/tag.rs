//! Tags: the budget and the limits that a stored state belongs to.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Limits, RuleName};
use crate::key::Budget;
use crate::{Limit, MAX_SPAN, SECOND};

/// A budget of a rule and the limits in force for it. A stored state carries the number of the tag
/// that wrote it: if the tag in force is another, the limits were replaced.
///
/// Tags are interned for the life of the process. They come from configuration, never from clients:
/// a tag has no inline limits.
#[derive(Clone, Copy)]
pub(crate) struct Tag(&'static TagData);

/// The content of a tag.
pub(crate) struct TagData {
    number: u32,
    pub(crate) rule: RuleName,
    pub(crate) budget: Budget,
    /// The limits. For an inline budget, a placeholder with the same state layout.
    pub(crate) limits: Limits,
    /// Units that the rule charges per unit of a request's cost.
    pub(crate) unit_cost: u64,
    /// Whether a denial may change a state.
    pub(crate) counts_denied: bool,
}

type Content = (RuleName, Budget, Limits, u64);

#[derive(Default)]
struct Registry {
    tags: Vec<Tag>,
    by_content: HashMap<Content, Tag>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tag {
    pub(crate) fn new(rule: RuleName, budget: Budget, limits: Limits, unit_cost: u64) -> Self {
        let mut registry = registry();
        let content = (rule, budget, limits, unit_cost);
        if let Some(known) = registry.by_content.get(&content) {
            return *known;
        }
        let number = u32::try_from(registry.tags.len()).unwrap_or(u32::MAX).saturating_add(1);
        let counts_denied = limits.iter().any(Limit::counts_denied);
        let data = TagData { number, rule, budget, limits, unit_cost, counts_denied };
        let tag = Self(Box::leak(Box::new(data)));
        registry.tags.push(tag);
        registry.by_content.insert(content, tag);
        tag
    }

    /// The tag of an inline budget, for limits of any size and period.
    pub(crate) fn inline(rule: RuleName, budget: Budget, unit_cost: u64) -> Self {
        let (budget, like) = match budget {
            Budget::InlineCount(_) => (Budget::InlineCount(Duration::ZERO), Limit::fixed_window(1, SECOND)),
            Budget::InlineSlots => (Budget::InlineSlots, Limit::concurrent(1)),
            _ => (Budget::InlineTime, Limit::per_second(1)),
        };
        let limits = like.inline(MAX_SPAN).unwrap_or(like);
        Self::new(rule, budget, limits.into(), unit_cost)
    }

    /// Whether the budget is inline.
    pub(crate) fn is_inline(self) -> bool {
        matches!(self.0.budget, Budget::InlineTime | Budget::InlineCount(_) | Budget::InlineSlots)
    }

    /// The tag of the same budget under other limits.
    pub(crate) fn under(self, limits: Limits) -> Self {
        Self::new(self.0.rule, self.0.budget, limits, self.0.unit_cost)
    }

    /// The tag's number, never 0.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0.number
    }

    /// The tag with this number, if there is one.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        registry().tags.get(index).copied()
    }

    /// Words of the packed states of all limits, if all of them pack.
    #[inline]
    pub(crate) fn words(self) -> Option<usize> {
        self.0.limits.words()
    }
}

impl std::ops::Deref for Tag {
    type Target = TagData;

    #[inline]
    fn deref(&self) -> &TagData {
        self.0
    }
}

impl PartialEq for Tag {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Tag {}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.0.rule, self.0.budget, self.0.limits)
    }
}
