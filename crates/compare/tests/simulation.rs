//! Checks that the error rates of comparisons are as documented, for recordings that vary from one to the next, slowly
//! within one, and in bursts. The full test is scripts/bench compare.

#[path = "../examples/simulate_compare/noise.rs"]
mod noise;
#[path = "../examples/simulate_compare/trials.rs"]
mod trials;

use noise::Variation;
use trials::{named_by_chance, trials};

const SHORT: Variation = Variation { seconds: 300, rate: 100, ..Variation::TEN_MINUTES };

#[test]
fn recordings_of_the_same_do_not_differ() {
    let named = trials(7, 40, 5, SHORT, SHORT);
    // The expected number is 2 (5 % of 40); the probability of 5 or more is 5 %.
    assert!(named.any <= 4, "{named:?}");
    assert!(named.resampled > named.any, "a plain bootstrap is no worse: {named:?}");
}

#[test]
fn a_shift_is_found_where_it_is() {
    let named = trials(11, 20, 5, Variation { shift: 1.08, ..SHORT }, SHORT);
    assert!(named.p99 >= 18, "{named:?}");
    assert!(named.elsewhere <= 3, "{named:?}");
}

/// The error rate of the statistic alone (`one_recording_against_several_is_as_sure_as_is_said`) also holds with the
/// single recording on either side, and with variance within the recordings. With 2,000 comparisons, the standard
/// deviation of the measured rate is 0.5 %.
#[test]
fn one_recording_against_several_of_the_same_is_rarely_named() {
    for sides in [(1, 3), (3, 1)] {
        let named = named_by_chance(0x51ed_270b, 2000, sides);
        assert!((0.035..=0.065).contains(&named), "{sides:?}: {named}");
    }
}
