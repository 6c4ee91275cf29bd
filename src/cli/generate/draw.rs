//! Sampling of the next token.

/// Rule for sampling a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rule {
    /// Divisor of the logits; 0 always takes the largest.
    pub(super) temperature: f64,
    /// Number of the most likely tokens to draw from; `None` for all.
    pub(super) top_k: Option<usize>,
    /// Minimum total probability of the most likely tokens to draw from; `None` for all.
    pub(super) top_p: Option<f64>,
}

impl Rule {
    /// Returns the token at `point`, a number in [0, 1), of the cumulative odds; `None` if logits are
    /// NaN or infinite. Of equal logits, the first ranks higher.
    pub(super) fn draw(&self, logits: &[f64], point: f64) -> Option<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let best = *order.first()?;
        if logits.iter().any(|logit| logit.is_nan()) || !logits[best].is_finite() {
            return None;
        }
        order.truncate(self.top_k.unwrap_or(usize::MAX));
        let odds = order
            .iter()
            .map(|&token| self.odds(logits[token] - logits[best]));
        let mut odds: Vec<f64> = odds.collect();
        if let Some(share) = self.top_p {
            odds.truncate(nucleus(&odds, share));
        }
        let aim = point * odds.iter().sum::<f64>();
        let mut sum = 0.0;
        let passes = |odd: &f64| {
            sum += odd;
            sum > aim
        };
        let place = odds.iter().position(passes).unwrap_or_default();
        Some(order[place])
    }

    /// Odds relative to the most likely token's.
    fn odds(&self, below: f64) -> f64 {
        match (self.temperature, below) {
            (_, 0.0) => 1.0,
            (0.0, _) => 0.0,
            (temperature, below) => (below / temperature).exp(),
        }
    }
}

/// Returns how many of these odds, largest first, reach this share of the total.
///
/// *Source*: Holtzman et al. 2020.
fn nucleus(odds: &[f64], share: f64) -> usize {
    let enough = share * odds.iter().sum::<f64>();
    let mut sum = 0.0;
    let last = odds.iter().position(|odd| {
        sum += odd;
        sum >= enough
    });
    last.map_or(odds.len(), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f64; 4] = [0.0, 2.0, 1.0, f64::NEG_INFINITY];

    fn shares(rule: Rule) -> [f64; 4] {
        let mut counts = [0.0; 4];
        for point in 0..1000 {
            let token = rule.draw(&LOGITS, f64::from(point) / 1000.0).unwrap();
            counts[token] += 1e-3;
        }
        counts
    }

    #[test]
    fn tokens_come_as_often_as_their_odds_say() {
        let rule = |temperature, top_k| Rule {
            temperature,
            top_k,
            top_p: None,
        };
        let all: f64 = LOGITS.iter().map(|logit| logit.exp()).sum();
        for (token, share) in shares(rule(1.0, None)).into_iter().enumerate() {
            assert!(
                (share - LOGITS[token].exp() / all).abs() < 2e-3,
                "{token}: {share}"
            );
        }
        let cold = shares(rule(0.5, None));
        assert!(cold[1] > 0.85 && cold[3] == 0.0, "{cold:?}");
        let two = shares(rule(1.0, Some(2)));
        assert!(two[0] == 0.0 && two[1] > two[2] && two[2] > 0.2, "{two:?}");
        // 1 / (1 + e^-1 + e^-2) is 0.665, with e^-1 it is 0.91.
        let most = |share| {
            shares(Rule {
                temperature: 1.0,
                top_k: None,
                top_p: Some(share),
            })
        };
        assert_eq!(most(0.66)[2], 0.0);
        let two = most(0.67);
        assert!(two[0] == 0.0 && two[2] > 0.2, "{two:?}");
        assert!(most(1.0)[0] > 0.05);
    }

    #[test]
    fn without_temperature_the_likeliest_comes_each_time_and_first_of_equals() {
        let rule = Rule {
            temperature: 0.0,
            top_k: None,
            top_p: Some(0.5),
        };
        for point in [0.0, 0.5, 1.0 - f64::EPSILON] {
            assert_eq!(rule.draw(&LOGITS, point), Some(1));
        }
        assert_eq!(rule.draw(&[1.0, 3.0, 3.0], 0.0), Some(1));
        // A temperature so small that every ratio is infinite acts like 0.
        let tiny = Rule {
            temperature: 1e-320,
            top_k: None,
            top_p: None,
        };
        assert_eq!(tiny.draw(&LOGITS, 0.7), Some(1));
    }

    #[test]
    fn what_is_no_number_is_no_token() {
        let rule = Rule {
            temperature: 1.0,
            top_k: Some(9),
            top_p: None,
        };
        assert_eq!(rule.draw(&[1.0, f64::NAN], 0.0), None);
        assert_eq!(rule.draw(&[1.0, f64::INFINITY], 0.0), None);
        assert_eq!(rule.draw(&[], 0.0), None);
        assert_eq!(rule.draw(&[5.0], 0.9), Some(0));
    }
}
