//! Overflow: a rule that covers what another rule's limits do not have.
//!
//! A rule that others overflow into is on demand: requests draw on it through those rules, or name
//! it. Charged by itself as well, it would pay for the whole of every request.
//!
//! What would make the answer ambiguous is refused here. The rule must have the key of every
//! request that overflows into it; a chain of overflows, and a shadow rule on either side, are
//! refused; and one unit of the cost is one unit of either rule.

use super::Rule;
use crate::Error;

/// Checks the overflow of every rule, and makes the rules that others overflow into on demand.
pub(super) fn resolve(rules: &mut [Rule]) -> Result<(), Error> {
    for rule in rules.iter().filter(|rule| rule.overflow.is_some()) {
        if let Err(reason) = check(rule, rules) {
            return Err(Error::InvalidRule { rule: rule.name.to_string(), field: "overflow", reason });
        }
    }
    let names: Vec<_> = rules.iter().filter_map(|rule| rule.overflow).collect();
    for rule in rules {
        rule.is_overflow = names.contains(&rule.name);
        rule.on_demand |= rule.is_overflow;
    }
    Ok(())
}

fn check(rule: &Rule, rules: &[Rule]) -> Result<(), String> {
    let Some(name) = rule.overflow else { return Ok(()) };
    let Some(into) = rules.iter().find(|other| other.name == name) else {
        return Err(format!("there is no rule {:?}; name another rule of the set", name.as_str()));
    };
    let name = format!("the rule {:?}", name.as_str());
    let fails = |reason: String| Err(reason);
    if into.name == rule.name {
        return fails("a rule cannot overflow into itself; name another rule".into());
    }
    if into.overflow.is_some() {
        return fails(format!("{name} has an overflow itself; name a rule that has none"));
    }
    if rule.shadow {
        return fails("a shadow rule would spend what it only watches; leave overflow out".into());
    }
    if rule.inline || into.inline {
        return fails("the limits of an inline rule come with requests; name rules with limits".into());
    }
    if into.shadow {
        return fails(format!("{name} is a shadow rule, which never denies; make it enforce"));
    }
    if !into.matches.is_empty() {
        return fails(format!("{name} has a match; match in the rules that overflow into it"));
    }
    if into.cost != 1 {
        return fails(format!(
            "{name} has the cost {}; one unit of it covers one unit, leave cost out",
            into.cost
        ));
    }
    if let Some(missing) = into.key.iter().find(|attribute| !rule.key.contains(attribute)) {
        return fails(format!("{name} counts by {missing:?}; add that to the key of this rule"));
    }
    let shares = |other: &&Rule| other.overflow == rule.overflow && other.cost != rule.cost;
    if let Some(other) = rules.iter().find(shares) {
        let other = other.name.as_str();
        return fails(format!(
            "the rule {other:?} overflows into {name} at another cost; write the same cost"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, RuleSet};

    const LIMIT: Limit = Limit::per_second(1);

    fn plan() -> Rule {
        Rule::new("plan", LIMIT).key(["org", "client"]).overflow("credits")
    }

    fn credits() -> Rule {
        Rule::new("credits", LIMIT).key(["org"])
    }

    #[test]
    fn c2_a_rule_that_others_overflow_into_is_on_demand() {
        let rules = RuleSet::new([credits(), plan(), Rule::new("other", LIMIT)]).unwrap();
        let names: Vec<&str> = rules.rules().iter().map(|rule| rule.name().as_str()).collect();
        assert_eq!(names, ["plan", "other", "credits"], "rules on demand are last");
        assert!(rules.rules()[2].is_on_demand());
        assert_eq!(rules.attributes(), ["client", "org"]);
    }

    #[test]
    fn d3_an_overflow_that_would_be_ambiguous_is_refused_with_its_reason() {
        let refused = |rules: &[Rule]| {
            let error = RuleSet::new(rules.iter().cloned()).unwrap_err();
            let Error::InvalidRule { rule, field: "overflow", reason } = error else { panic!("{error}") };
            assert_eq!(rule, "plan");
            reason
        };
        assert!(refused(&[plan()]).contains("there is no rule \"credits\""));
        assert!(refused(&[Rule::new("plan", LIMIT).overflow("plan")]).contains("into itself"));
        let chain = [plan(), credits().overflow("more"), Rule::new("more", LIMIT).key(["org"])];
        assert!(refused(&chain).contains("\"credits\" has an overflow itself"));
        assert!(refused(&[plan().shadow(), credits()]).contains("a shadow rule would spend"));
        assert!(refused(&[plan(), credits().shadow()]).contains("never denies"));
        assert!(refused(&[plan(), Rule::inline("credits")]).contains("inline rule"));
        assert!(refused(&[plan(), credits().matching("path", "/x")]).contains("has a match"));
        assert!(refused(&[plan(), credits().cost(2)]).contains("has the cost 2"));
        assert!(refused(&[plan(), credits().key(["user"])]).contains("counts by \"user\""));
        let dear = Rule::new("dear", LIMIT).key(["org"]).cost(3).overflow("credits");
        assert!(refused(&[plan(), dear, credits()]).contains("\"dear\" overflows into"));
    }
}
