//! The passes of a run over the same logs.

use std::time::Duration;

use super::candidate::{Candidate, Configured};
use super::field::Field;
use super::input::Input;
use super::options::{Options, Whole};
use super::progress::Progress;
use super::reader::{Extraction, LogSummary};
use super::replay::{Consumer, replay};
use super::report::Report;
use super::suggest::{Bracket, Demand, DenialCount, Found, Peaks, Shape, Suggestions};
use super::trace::{self, Trace};
use super::traffic::Traffic;
use super::trial::Trial;

/// The logs, and what is known about them.
pub(super) struct Session<'a> {
    options: &'a Options,
    colour: bool,
    logs: Vec<Input>,
    extraction: Extraction,
    /// The traffic of the first pass.
    traffic: Traffic,
    passes: u32,
    /// The demands that the first pass measured for suggestions.
    demands: Vec<Demand>,
    /// Suggested limits, which are candidates too.
    suggested: Vec<tollgate::Limit>,
}

impl<'a> Session<'a> {
    pub(super) fn new(options: &'a Options, colour: bool) -> Result<Self, String> {
        let configured = read_configurations(options, colour)?;
        let mut attributes: Vec<(String, Field)> = Vec::new();
        for name in configured.iter().flat_map(Configured::attributes) {
            if !attributes.iter().any(|(known, _)| known == name) {
                let Ok(field) = name.parse();
                attributes.push((name.clone(), field));
            }
        }
        let extraction = Extraction {
            format: options.format,
            names: options.field.clone(),
            key: options.key.clone(),
            cost: options.cost.clone(),
            attributes,
            has_configuration: !configured.is_empty(),
        };
        let logs = Input::find(&options.logs, options.suggest || options.html.is_some())?;
        Ok(Self {
            options,
            colour,
            logs,
            extraction,
            traffic: Traffic::new(),
            passes: 0,
            demands: Vec::new(),
            suggested: Vec::new(),
        })
    }

    /// Decides the log under every candidate, and measures demand if limits are to be suggested.
    pub(super) fn first_pass(&mut self) -> Result<Report, String> {
        let mut trials: Vec<Trial> = self.candidates()?.into_iter().map(Trial::new).collect();
        let shapes: &[Shape] = if self.options.suggest { &Shape::WINDOWS } else { &[] };
        let mut demands = self.new_demands(shapes)?;
        let mut traffic = Traffic::new();
        let logs = self.pass("replaying", &mut traffic, {
            let trials = trials.iter_mut().map(|trial| trial as &mut dyn Consumer);
            trials.chain(demands.iter_mut().map(|demand| demand as &mut dyn Consumer)).collect()
        })?;
        if traffic.requests == 0 {
            return Err(nothing_read(&self.logs, &logs));
        }
        (self.traffic, self.demands) = (traffic, demands);
        let files = self.logs.iter().map(|log| log.name.clone()).collect();
        Ok(Report::new(files, logs, &self.traffic, &trials))
    }

    /// Finds a limit for each algorithm, tries them, and adds them to the report.
    pub(super) fn suggest(&mut self, report: &mut Report) -> Result<(), String> {
        let Options { at_most, of, per, .. } = *self.options;
        let demands = std::mem::take(&mut self.demands);
        let mut found = self.sizes(demands)?;
        if let Some(Found { peaks, size: Some(size), .. }) = found.first() {
            let buckets = Shape::buckets(peaks, *size);
            let mut demands = self.new_demands(&buckets)?;
            self.pass("measuring bursts", &mut Traffic::new(), consumers(&mut demands))?;
            let buckets = self.sizes(demands)?;
            found.splice(0..0, buckets);
        }
        let limits =
            found.iter().map(|found| found.size.map(|size| found.shape.limit(size, per)).transpose());
        let limits = limits.collect::<Result<Vec<_>, _>>()?;
        self.suggested = limits.iter().flatten().copied().collect();
        let candidates = self.suggested.iter().map(|limit| Candidate::of_limit(*limit));
        let mut trials = candidates.map(|it| it.map(Trial::new)).collect::<Result<Vec<_>, _>>()?;
        self.pass("trying suggestions", &mut Traffic::new(), consumers(&mut trials))?;
        let mut tried = Report::new(Vec::new(), Vec::new(), &self.traffic, &trials).candidates;
        let suggestion = |(found, limit): (&Found, &Option<tollgate::Limit>)| {
            let label = limit.map(|limit| limit.to_string());
            found.suggestion(per, tried.iter().find(|tried| Some(&tried.limit) == label.as_ref()))
        };
        let algorithms = found.iter().zip(&limits).map(suggestion).collect::<Result<Vec<_>, _>>()?;
        let span = Duration::from_millis(report.traffic.span_ms);
        report.suggestions = Some(Suggestions::new((at_most, of, per), span, self.passes, algorithms));
        report.candidates.append(&mut tried);
        Ok(())
    }

    /// Adds the timelines of single clients to the report.
    pub(super) fn trace(&mut self, report: &mut Report) -> Result<(), String> {
        let chosen = trace::choose(report, &self.traffic);
        let suggested = self.suggested.iter().map(|limit| Candidate::of_limit(*limit));
        let mut candidates = self.candidates()?;
        candidates.extend(suggested.collect::<Result<Vec<_>, _>>()?);
        if candidates.is_empty() {
            return Ok(());
        }
        let timeline = self.traffic.timeline.clone();
        let mut traces: Vec<Trace<'_>> =
            candidates.into_iter().map(|candidate| Trace::new(candidate, &timeline, &chosen)).collect();
        self.pass("tracing clients", &mut Traffic::new(), consumers(&mut traces))?;
        report.clients = trace::timelines(&chosen, &traces, &self.traffic);
        Ok(())
    }

    /// The candidates of the arguments, with fresh limiters.
    fn candidates(&self) -> Result<Vec<Candidate>, String> {
        let attributes: Vec<String> =
            self.extraction.attributes.iter().map(|(name, _)| name.clone()).collect();
        let limits = self.options.limit.iter().map(|limit| Candidate::of_limit(*limit));
        let configured = read_configurations(self.options, self.colour)?;
        limits.chain(configured.into_iter().map(|config| config.candidate(&attributes))).collect()
    }

    fn new_demands(&self, shapes: &[Shape]) -> Result<Vec<Demand>, String> {
        let demand = |shape: &Shape| {
            let demand = Demand::new(*shape, self.options.per);
            demand.map_err(|error| format!("--per: {error}"))
        };
        shapes.iter().map(demand).collect()
    }

    /// The tightest sizes, from the demands or by search.
    fn sizes(&mut self, demands: Vec<Demand>) -> Result<Vec<Found>, String> {
        let of_clients = self.options.at_most.of(super::report::count(self.traffic.requests_by_client.len()));
        let shapes: Vec<Shape> = demands.iter().map(|demand| demand.shape).collect();
        let peaks: Vec<Peaks> = demands.into_iter().map(Demand::into_peaks).collect();
        let mut brackets: Vec<Option<Bracket>> = shapes
            .iter()
            .zip(&peaks)
            .map(|(shape, peaks)| Some(Bracket::up_to(*shape, peaks.largest()?.max(1))))
            .collect();
        if self.options.of == Whole::Requests {
            self.search(&mut brackets)?;
        }
        let found = shapes.into_iter().zip(peaks).zip(brackets).map(|((shape, peaks), bracket)| {
            match self.options.of {
                Whole::Clients => Found::by_clients(shape, peaks, of_clients),
                Whole::Requests => Found { shape, peaks, size: bracket.map(|bracket| bracket.fits) },
            }
        });
        Ok(found.collect())
    }

    /// Narrows the brackets until all are narrow: seven times in each pass, so a handful of passes.
    fn search(&mut self, brackets: &mut [Option<Bracket>]) -> Result<(), String> {
        let at_most = self.options.at_most.of(self.traffic.requests);
        while !brackets.iter().flatten().all(Bracket::is_narrow) {
            let trials = brackets.iter().map(|bracket| {
                bracket.as_ref().map_or_else(|| Ok(Vec::new()), |bracket| bracket.trials(self.options.per))
            });
            let mut trials: Vec<Vec<DenialCount>> = trials.collect::<Result<_, _>>()?;
            let all = trials.iter_mut().flatten().map(|trial| trial as &mut dyn Consumer).collect();
            self.pass("searching", &mut Traffic::new(), all)?;
            for (bracket, trials) in brackets.iter_mut().zip(&trials) {
                if let Some(bracket) = bracket {
                    bracket.narrow(trials, at_most);
                }
            }
        }
        Ok(())
    }

    /// Reads the logs once. Clients keep their numbers, because the order is the same.
    fn pass(
        &mut self,
        activity: &str,
        traffic: &mut Traffic,
        mut consumers: Vec<&mut dyn Consumer>,
    ) -> Result<Vec<LogSummary>, String> {
        self.passes += 1;
        let progress = Progress::new(activity, &self.logs);
        replay(&self.logs, &self.extraction, traffic, &mut consumers, &progress)
    }
}

fn read_configurations(options: &Options, colour: bool) -> Result<Vec<Configured>, String> {
    options.config.iter().map(|file| Configured::read(file, colour)).collect()
}

fn consumers<C: Consumer>(consumers: &mut [C]) -> Vec<&mut dyn Consumer> {
    consumers.iter_mut().map(|consumer| consumer as &mut dyn Consumer).collect()
}

/// Why there is no report.
fn nothing_read(logs: &[Input], summaries: &[LogSummary]) -> String {
    let names: Vec<&str> = logs.iter().map(|log| log.name.as_str()).collect();
    let why = match summaries.iter().find_map(|summary| summary.examples.first()) {
        Some(line) => format!("line {} of {} cannot be read: {}", line.line, line.log, line.why),
        None => summaries
            .iter()
            .flat_map(|summary| summary.warnings.first())
            .cloned()
            .collect::<Vec<_>>()
            .join("; "),
    };
    format!("there is no request in {} ({why}); name an access log, or pass --format", names.join(", "))
}
