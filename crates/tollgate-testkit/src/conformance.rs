//! The `conformance!` macro.

/// Defines a module of tests that run every law over a store. It takes the module's name and a
/// function that makes a fresh, empty store.
///
/// A store whose time is coarser than a nanosecond passes its resolution: `conformance!(name, make,
/// resolution = Duration::from_micros(1))`. For a plain [`Counter`](tollgate::Counter),
/// `conformance!(name, counter = make)` tests the laws that a counter can keep; `make` takes the
/// clock. For a store that is slow to set up, `conformance!(name, make, resolution = …, together,
/// cases = 32)` is one test of all laws, with that many cases each; a final `sharded` is for a
/// store that decides keys on different servers one after the other.
#[macro_export]
macro_rules! conformance {
    ($name:ident, counter = $make:expr) => {
        $crate::conformance!(@tests $name, $crate::CounterLaws::new($make), [
            b1_never_too_many,
            b5_keys_are_islands,
            b6_forgetting_is_invisible,
            b9_racing_threads_admit_exactly_the_limit,
        ]);
    };
    ($name:ident, $make:expr) => {
        $crate::conformance!($name, $make, resolution = ::std::time::Duration::from_nanos(1));
    };
    ($name:ident, $make:expr, resolution = $resolution:expr) => {
        $crate::conformance!(@all tests $name, $crate::Laws::new($make).resolution($resolution));
    };
    ($name:ident, $make:expr, resolution = $resolution:expr, together, cases = $cases:expr) => {
        $crate::conformance!(
            @all together $name, $crate::Laws::new($make).resolution($resolution).cases($cases)
        );
    };
    ($name:ident, $make:expr, resolution = $resolution:expr, together, cases = $cases:expr, sharded) => {
        $crate::conformance!(
            @all together $name, $crate::Laws::new($make).resolution($resolution).cases($cases).sharded()
        );
    };
    (@all $mode:ident $name:ident, $laws:expr) => {
        $crate::conformance!(@$mode $name, $laws, [
            b1_never_too_many,
            b2_denial_is_free,
            b3_remaining_is_true,
            b4_retry_after_is_exact,
            b5_keys_are_islands,
            b6_forgetting_is_invisible,
            b7_a_clock_that_goes_back_hands_out_nothing_anew,
            b7_a_clock_that_jumps_breaks_nothing,
            b7_a_late_reading_is_decided_at_the_states_own_time,
            b7_a_wild_reading_locks_nobody_out_for_long,
            b7_a_state_is_wild_beyond_one_period,
            b8_all_or_nothing,
            b8_the_same_key_twice_is_charged_once,
            b8_opposite_orders_do_not_deadlock,
            b9_racing_threads_admit_exactly_the_limit,
            b9_readings_out_of_order_admit_exactly_the_limit,
            b10_outcomes_are_those_of_the_oracle,
            b11_replacing_a_limit_keeps_history,
            b11_a_record_counts_under_the_limit_in_force,
            b12_limits_are_islands,
            b12_inline_windows_of_different_periods_are_islands,
            c5_reservations_live_in_the_store,
            c5_blocks_live_in_the_store,
            c5_refunds_do_not_refill_a_reserve,
            c7_what_was_used_is_recorded_to_the_unit,
            c7_a_denied_cost_is_recorded_in_the_decision,
            c7_a_thousand_streams_record_what_they_used,
            c7_settling_counts_once,
            c7_reservations_are_those_of_the_oracle,
            c7_a_late_settlement_charges_once,
            c5_a_reservation_gives_back_its_own_units,
            c8_outcomes_of_slots_are_those_of_the_oracle,
            c8_racing_holders_never_exceed_the_limit,
            c8_a_verb_without_a_name_takes_no_slot,
            c8_an_overflow_lends_no_slot,
            c8_a_clock_that_goes_back_frees_no_slot,
            c8_a_wild_reading_keeps_no_slot,
            c9_windows_are_those_of_the_calendar,
            c10_an_overflow_covers_what_the_plan_lacks,
            c10_the_laws_hold_for_both_budgets_together,
            c10_what_was_used_is_recorded_by_both_budgets,
            c10_an_overflow_is_atomic,
        ]);
    };
    (@together $name:ident, $laws:expr, [$($law:ident),* $(,)?]) => {
        mod $name {
            #[allow(unused_imports, reason = "the expressions may name items around the macro")]
            use super::*;

            #[test]
            fn keeps_every_law() {
                let laws = $laws;
                $(
                    eprintln!(stringify!($law));
                    laws.$law();
                )*
            }
        }
    };
    (@tests $name:ident, $laws:expr, [$($law:ident),* $(,)?]) => {
        mod $name {
            #[allow(unused_imports, reason = "the expressions may name items around the macro")]
            use super::*;

            $(
                #[test]
                fn $law() {
                    ($laws).$law();
                }
            )*
        }
    };
}
