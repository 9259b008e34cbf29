//! A limit as configuration to paste: ours, nginx's `limit_req`, and Envoy's.

use std::time::Duration;

use tollgate::{Algorithm, Bucket, DAY, HOUR, Limit, MINUTE, SECOND};

use super::Pasteable;

/// The configurations that have this limit. nginx has no windows, and Envoy's rate limit service no
/// buckets.
pub(crate) fn paste(limit: &Limit) -> Vec<Pasteable> {
    let ours = format!("[[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"{limit}\"\n");
    let mut pieces = vec![Pasteable { program: "tollgate", text: ours }];
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) => {
            pieces.extend(nginx(&bucket).map(|text| Pasteable { program: "nginx", text }));
            pieces.push(Pasteable { program: "envoy", text: envoy_bucket(&bucket) });
        }
        Algorithm::FixedWindow { limit, period, .. } => {
            pieces.extend(envoy_window(limit, period).map(|text| Pasteable { program: "envoy", text }));
        }
        _ => {}
    }
    pieces
}

/// nginx counts whole requests a second or a minute, and admits one beside the burst.
fn nginx(bucket: &Bucket) -> Option<String> {
    let per = |unit: Duration| {
        let amount = u128::from(bucket.amount) * unit.as_nanos();
        amount.is_multiple_of(bucket.interval.as_nanos()).then(|| amount / bucket.interval.as_nanos())
    };
    let per_minute = || u128::from(bucket.amount) * MINUTE.as_nanos() / bucket.interval.as_nanos();
    let rate = match (per(SECOND), per_minute()) {
        (Some(rate), _) if rate > 0 => format!("{rate}r/s"),
        (_, 0) => return None,
        (_, rate) => format!("{rate}r/m"),
    };
    let burst = bucket.capacity.saturating_sub(1);
    Some(format!(
        "limit_req_zone $binary_remote_addr zone=per_client:10m rate={rate};   # in http\n\
         limit_req zone=per_client burst={burst} nodelay;                      # in server or location\n\
         limit_req_status 429;\n"
    ))
}

/// The local rate limit filter has buckets, refilled at intervals.
fn envoy_bucket(bucket: &Bucket) -> String {
    let seconds = bucket.interval.as_secs_f64();
    format!(
        "# envoy.filters.http.local_ratelimit: one bucket for each value of the descriptor\n\
         descriptors:\n\
         - entries:\n  \
           - key: remote_address\n  \
           token_bucket:\n    \
             max_tokens: {}\n    \
             tokens_per_fill: {}\n    \
             fill_interval: {seconds}s\n",
        bucket.capacity, bucket.amount
    )
}

/// The rate limit service counts in windows of one unit, aligned to the clock.
fn envoy_window(limit: u64, period: Duration) -> Option<String> {
    let units = [(SECOND, "second"), (MINUTE, "minute"), (HOUR, "hour"), (DAY, "day")];
    let (_, unit) = units.into_iter().find(|(unit, _)| *unit == period)?;
    Some(format!(
        "# the rate limit service; tollgate serve --envoy-config reads it, too\n\
         domain: edge\n\
         descriptors:\n\
         - key: remote_address\n  \
           rate_limit:\n    \
             unit: {unit}\n    \
             requests_per_unit: {limit}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: &str, program: &str) -> Option<String> {
        let pieces = paste(&limit.parse().unwrap());
        pieces.into_iter().find(|piece| piece.program == program).map(|piece| piece.text)
    }

    #[test]
    fn a_bucket_is_nginxs_rate_and_burst() {
        assert!(of("120/min burst 30", "nginx").unwrap().contains("rate=2r/s;"));
        assert!(of("90/min burst 30", "nginx").unwrap().contains("rate=90r/m;"));
        assert!(of("90/min burst 30", "nginx").unwrap().contains("burst=29 nodelay"));
        assert_eq!(of("1/hour", "nginx"), None, "less than once a minute");
        assert_eq!(of("90/min fixed", "nginx"), None);
    }

    #[test]
    fn a_bucket_and_a_window_are_envoys() {
        assert!(
            of("90/min burst 30", "envoy")
                .unwrap()
                .contains("max_tokens: 30\n    tokens_per_fill: 90\n    fill_interval: 60s")
        );
        assert!(of("90/min fixed", "envoy").unwrap().contains("unit: minute\n    requests_per_unit: 90"));
        assert_eq!(of("90/90s fixed", "envoy"), None);
        assert!(of("90/min log", "tollgate").unwrap().contains("limit = \"90/minute log\""));
    }
}
