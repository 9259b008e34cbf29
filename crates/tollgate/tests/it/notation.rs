//! Parsing and formatting the notation, over random limits.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Bucket, CalendarUnit, Error, Limit, MAX_COUNT, MAX_SLOTS, MAX_SPAN, Zone};

fn wide_limit() -> impl Strategy<Value = Limit> {
    let count = prop_oneof![1..100_u64, 1..=MAX_COUNT, Just(MAX_COUNT)];
    let span = prop_oneof![
        1..5_000_u64,
        (1..1_000_u64).prop_map(|seconds| seconds * 1_000_000_000),
        (1..500_u64).prop_map(|weeks| weeks * 604_800_000_000_000),
        1..=MAX_SPAN.as_nanos() as u64,
    ]
    .prop_map(Duration::from_nanos);
    let bucket = (count.clone(), count.clone(), span.clone(), any::<bool>())
        .prop_map(|(capacity, amount, interval, stepped)| Bucket { capacity, amount, interval, stepped });
    let zones = ["UTC", "Etc/UTC", "Europe/Berlin", "Etc/GMT+5", "America/Argentina/Buenos_Aires"];
    let zones = zones.map(|name| Zone::new(name).unwrap());
    let calendar = (prop::sample::select(&CalendarUnit::ALL), prop::sample::select(zones.to_vec()));
    let algorithm = prop_oneof![
        (count.clone(), span.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(limit, period, aligned, count_denied)| Algorithm::FixedWindow {
                limit,
                period,
                aligned,
                count_denied
            }
        ),
        (count.clone(), span.clone(), any::<bool>()).prop_map(|(limit, period, count_denied)| {
            Algorithm::SlidingWindow { limit, period, count_denied }
        }),
        (count.clone(), calendar, any::<bool>()).prop_map(|(limit, (unit, zone), count_denied)| {
            Algorithm::CalendarWindow { limit, unit, zone, count_denied }
        }),
        (count, span).prop_map(|(limit, period)| Algorithm::SlidingLog { limit, period }),
        (1..=MAX_SLOTS).prop_map(|limit| Algorithm::Concurrent { limit }),
        bucket.clone().prop_map(Algorithm::TokenBucket),
        (bucket.clone(), bucket).prop_map(|(sustained, reserve)| Algorithm::Reserve { sustained, reserve }),
    ];
    let debt = prop::option::of(prop_oneof![0..20_u64, 0..=MAX_COUNT]);
    (algorithm, debt).prop_filter_map("out of range together", |(algorithm, debt)| {
        let limit = Limit::new(algorithm).ok()?;
        debt.map_or(Some(limit), |debt| limit.with_debt(debt).ok())
    })
}

proptest! {
    #[test]
    fn a_formatted_limit_parses_to_the_same_limit(limit in wide_limit()) {
        prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
    }

    #[test]
    fn an_error_names_a_column_within_the_text(
        words in prop::collection::vec(
            prop_oneof![
                Just("10"), Just("/"), Just("60s"), Just("per"), Just("minute"), Just("burst"), Just("refill"), Just("every"),
                Just("reserve"), Just("fixed"), Just("aligned"), Just("at"), Just("month"), Just("Europe/Berlin"), Just("sliding"), Just("log"), Just("counting"), Just("denied"), Just("debt"), Just("concurrent"),
                Just("1_0k"), Just("-"), Just("é"), Just("api"), Just(" "), Just("0"), Just("99999999999999999999"),
            ],
            0..8,
        ),
    ) {
        let text = words.join(" ");
        if let Err(Error::InvalidNotation { column, reason, hint, .. }) = text.parse::<Limit>() {
            prop_assert!((1..=text.chars().count() + 1).contains(&column), "{} in {:?}", column, text);
            let said = reason.split('"').nth(1).unwrap_or("…");
            prop_assert!(!hint.contains(&format!("did you mean {said:?}")), "{:?}: {} {}", text, reason, hint);
        }
    }
}
