//! The table in the terminal: a row for each policy and rate, the spread over the seeds below it.

use expediter_fleet_sim::{Quantiles, Spread, Summary};

use super::outcome::{Group, Outcome, best};
use super::plan::Plan;
use crate::demo::line::{Line, Style};

/// A column: its head, the number it shows of a run, and how that is written.
struct Column {
    head: &'static str,
    width: usize,
    number: fn(&Summary) -> Option<f64>,
    decimals: usize,
}

const fn column(
    head: &'static str,
    width: usize,
    decimals: usize,
    number: fn(&Summary) -> Option<f64>,
) -> Column {
    Column { head, width, number, decimals }
}

/// The columns between the policy's name and the verdict.
const COLUMNS: [Column; 13] = [
    column("offered/s", 10, 1, |run| Some(run.offered_per_second)),
    column("answered/s", 11, 1, |run| Some(run.answered_per_second)),
    column("goodput/s", 10, 1, |run| Some(run.goodput_per_second)),
    column("TTFT p50", 9, 0, |run| ms(run.ttft, |ttft| ttft.p50)),
    column("p90", 7, 0, |run| ms(run.ttft, |ttft| ttft.p90)),
    column("p99 ms", 8, 0, |run| ms(run.ttft, |ttft| ttft.p99)),
    column("TPOT p50", 9, 1, |run| ms(run.tpot, |tpot| tpot.p50)),
    column("p95 ms", 8, 1, |run| ms(run.tpot, |tpot| tpot.p95)),
    column("hit %", 7, 1, |run| Some(run.hit_ratio * 100.0)),
    column("ideal %", 8, 1, |run| Some(run.hit_ratio_ideal * 100.0)),
    column("refused", 8, 0, |run| Some(run.counts.refused() as f64)),
    column("lost", 6, 0, |run| Some((run.counts.unanswered() - run.counts.refused()) as f64)),
    column("preempt", 8, 0, |run| Some(run.preemptions as f64)),
];

fn ms(quantiles: Option<Quantiles>, which: fn(Quantiles) -> std::time::Duration) -> Option<f64> {
    quantiles.map(|quantiles| which(quantiles).as_secs_f64() * 1e3)
}

/// The whole table. `verbose` adds the digest of each history.
pub(crate) fn table(plan: &Plan, outcomes: &[Outcome], verbose: bool) -> Vec<Line> {
    let groups = Group::all(outcomes, plan.seeds.len());
    let best = best(&groups);
    let names = name_width(&groups);
    let mut lines = vec![head(names)];
    for group in &groups {
        let is_best = best.iter().any(|best| std::ptr::eq(*best, group));
        lines.push(row(group, names, is_best && groups.len() > 1));
        if group.outcomes.len() > 1 {
            lines.push(spreads(group, names));
        }
        if verbose {
            lines.extend(group.outcomes.iter().map(|outcome| digest(outcome)));
        }
    }
    lines.push(Line::default());
    lines.push(Line::of(Style::Dim, legend(plan)));
    lines
}

fn name_width(groups: &[Group<'_>]) -> usize {
    let widths = groups.iter().map(|group| group.job().policy.as_str().len());
    widths.max().unwrap_or_default().max("policy".len()) + 2
}

fn head(names: usize) -> Line {
    let mut head = Line::of(Style::Bold, format!("  {:<names$}", "policy"));
    for column in &COLUMNS {
        head.push(Style::Bold, format!("{:>width$}", column.head, width = column.width));
    }
    head.push(Style::Bold, "  SLO");
    head
}

fn row(group: &Group<'_>, names: usize, is_best: bool) -> Line {
    let style = if is_best { Style::Bold } else { Style::Plain };
    let mark = if is_best { "*" } else { " " };
    let mut row = Line::of(style, format!("{mark} {:<names$}", group.job().policy.as_str()));
    for column in &COLUMNS {
        let mean = group.spread(|outcome| (column.number)(&outcome.summary)).map(|spread| spread.mean);
        row.push(style, cell(mean, column));
    }
    let (style, verdict) = verdict(group);
    row.push(style, format!("  {verdict}"));
    row
}

fn cell(number: Option<f64>, column: &Column) -> String {
    let text = number.map_or_else(|| "–".to_owned(), |number| format!("{number:.0$}", column.decimals));
    format!("{text:>0$}", column.width)
}

/// The standard deviations over the seeds.
fn spreads(group: &Group<'_>, names: usize) -> Line {
    let mut line = Line::of(Style::Dim, format!("  {:names$}", ""));
    for column in &COLUMNS {
        let spread = group.spread(|outcome| (column.number)(&outcome.summary));
        let deviation = |Spread { deviation, .. }| format!("±{deviation:.0$}", column.decimals);
        line.push(
            Style::Dim,
            format!("{:>width$}", spread.map(deviation).unwrap_or_default(), width = column.width),
        );
    }
    line
}

/// Whether the objectives were met, by every seed, some or none; and what was missed.
fn verdict(group: &Group<'_>) -> (Style, String) {
    let count = group.outcomes.len();
    if group.outcomes.iter().all(|outcome| outcome.summary.counts.arrived == 0) {
        return (Style::Warn, "no request arrived in the measured time".to_owned());
    }
    let met = group.outcomes.iter().filter(|outcome| outcome.summary.sustains).count();
    if met == count {
        return (Style::Good, "met".to_owned());
    }
    let share = |number: fn(&Summary) -> f64| group.mean(|outcome| Some(number(&outcome.summary))) * 100.0;
    let within = format!(
        "TTFT {:.1} %, TPOT {:.1} % within",
        share(|run| run.within_ttft),
        share(|run| run.within_tpot)
    );
    if met == 0 {
        (Style::Bad, format!("missed: {within}"))
    } else {
        (Style::Warn, format!("met by {met} of {count} seeds: {within}"))
    }
}

fn digest(outcome: &Outcome) -> Line {
    Line::of(Style::Dim, format!("    seed {}: history {:016x}", outcome.job.seed, outcome.history))
}

fn legend(plan: &Plan) -> String {
    let slo = &plan.scenario.slo;
    let seeds = match plan.seeds.len() {
        1 => format!("seed {}", plan.seeds[0]),
        count => format!("means over {count} seeds, ± standard deviation"),
    };
    format!(
        "SLO: TTFT within {} ms for {} % of prompts up to {} tokens, TPOT within {} ms for {} % of answers. {seeds}. \
         * is the most goodput at a rate.",
        slo.ttft.as_millis(),
        percent(slo.ttft_share),
        slo.prompt_max.0,
        slo.tpot.as_millis(),
        percent(slo.tpot_share),
    )
}

/// As many decimals as it needs, up to two.
fn percent(share: f64) -> f64 {
    (share * 1e4).round() / 1e2
}

/// The table of a search: the highest rate that each policy sustains.
pub(crate) fn ceilings(plan: &Plan, outcomes: &[Outcome], verbose: bool) -> Vec<Line> {
    let mut groups = Group::all(outcomes, plan.seeds.len());
    groups.sort_by(|a, b| ceiling(b).total_cmp(&ceiling(a)));
    let names = name_width(&groups);
    let mut head = Line::of(Style::Bold, format!("  {:<names$}", "policy"));
    head.push(
        Style::Bold,
        format!(
            "{:>12}{:>9}{:>14}{:>11}{:>11}{:>8}{:>9}",
            "ceiling/s", "±", "per replica/s", "TTFT p99", "TPOT p95", "hit %", "ideal %"
        ),
    );
    let mut lines = vec![head];
    for (place, group) in groups.iter().enumerate() {
        lines.push(ceiling_row(plan, group, names, place == 0 && groups.len() > 1));
        if verbose {
            lines.extend(group.outcomes.iter().map(|outcome| tries(outcome)));
        }
    }
    lines.push(Line::default());
    lines.push(Line::of(
        Style::Dim,
        format!("The highest rate inside the SLO, by bisection to 2 %. {}", legend(plan)),
    ));
    lines
}

/// The mean ceiling over the seeds, requests per second.
pub(crate) fn ceiling(group: &Group<'_>) -> f64 {
    group.mean(|outcome| outcome.ceiling.as_ref().map(|ceiling| ceiling.rate))
}

fn ceiling_row(plan: &Plan, group: &Group<'_>, names: usize, is_best: bool) -> Line {
    let style = if is_best { Style::Bold } else { Style::Plain };
    let mark = if is_best { "*" } else { " " };
    let spread = group.spread(|outcome| outcome.ceiling.as_ref().map(|ceiling| ceiling.rate));
    let (rate, deviation) = spread.map_or((0.0, 0.0), |spread| (spread.mean, spread.deviation));
    let mut row = Line::of(style, format!("{mark} {:<names$}", group.job().policy.as_str()));
    row.push(style, format!("{rate:>12.2}"));
    row.push(Style::Dim, format!("{:>9}", format!("±{deviation:.2}")));
    row.push(style, format!("{:>14.2}", rate / f64::from(plan.replicas())));
    let milliseconds = |number: fn(&Summary) -> Option<f64>| group.mean(|outcome| number(&outcome.summary));
    row.push(style, format!("{:>11.0}", milliseconds(|run| ms(run.ttft_within_prompt_max, |ttft| ttft.p99))));
    row.push(style, format!("{:>11.1}", milliseconds(|run| ms(run.tpot, |tpot| tpot.p95))));
    row.push(style, format!("{:>8.1}", 100.0 * group.mean(|outcome| Some(outcome.summary.hit_ratio))));
    row.push(style, format!("{:>9.1}", 100.0 * group.mean(|outcome| Some(outcome.summary.hit_ratio_ideal))));
    let unbounded =
        |outcome: &&Outcome| outcome.ceiling.as_ref().is_some_and(|ceiling| ceiling.failed.is_none());
    if rate == 0.0 {
        row.push(Style::Bad, "  no rate is sustained");
    } else if group.outcomes.iter().any(unbounded) {
        row.push(Style::Warn, "  at least: the search went no higher");
    }
    row
}

fn tries(outcome: &Outcome) -> Line {
    let tried = outcome.ceiling.iter().flat_map(|ceiling| &ceiling.tried);
    let tried: Vec<String> = tried
        .map(|(rate, sustained)| format!("{rate:.2} {}", if *sustained { "yes" } else { "no" }))
        .collect();
    Line::of(Style::Dim, format!("    seed {}: {}", outcome.job.seed, tried.join(", ")))
}
