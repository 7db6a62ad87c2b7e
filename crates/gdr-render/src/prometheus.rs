//! Metrics in Prometheus' text format, version 0.0.4.

use std::fmt::{self, Display, Write};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that may rise and fall.
    Gauge,
    /// A value that only increases.
    Counter,
}

/// Metrics; displays as the text that a scrape returns.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Family>);

/// A metric with its samples.
#[derive(Clone, Debug)]
pub struct Family {
    name: String,
    kind: Kind,
    help: String,
    samples: Vec<(String, String)>,
}

impl Metrics {
    /// Adds a metric. It is omitted if it has no samples.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> &mut Family {
        self.0.push(Family {
            name: name.to_owned(),
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Adds a metric with one sample and no labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample("", value);
    }
}

impl Family {
    /// Adds a sample. `labels` come from [`labels`], and must be unique within the metric, as a scrape that repeats a
    /// series is rejected as a whole.
    pub fn sample(&mut self, labels: &str, value: impl Display) {
        self.samples.push((labels.to_owned(), value.to_string()));
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let name = &family.name;
            let kind = match family.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
            };
            writeln!(f, "# HELP {name} {}\n# TYPE {name} {kind}", family.help)?;
            for (labels, value) in &family.samples {
                writeln!(f, "{name}{labels} {value}")?;
            }
        }
        Ok(())
    }
}

/// Formats the labels of a sample as `{name="value",...}`, escaping the three special characters of values.
pub fn labels(pairs: &[(&str, &dyn Display)]) -> String {
    let mut text = String::from("{");
    for (at, (name, value)) in pairs.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let value = value.to_string().replace('\\', "\\\\");
        let value = value.replace('"', "\\\"").replace('\n', "\\n");
        // Writing to a string never fails.
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_its_head_and_its_samples_and_nothing_without_one() {
        let mut metrics = Metrics::default();
        metrics.single("a", Kind::Counter, "One.", 1);
        metrics.family("b", Kind::Gauge, "None.");
        let many = metrics.family("c", Kind::Gauge, "Two.");
        many.sample(&labels(&[("x", &1), ("y", &"z")]), 0.5);
        many.sample(&labels(&[("x", &2), ("y", &"z")]), u64::MAX);
        let expected = "# HELP a One.\n# TYPE a counter\na 1\n# HELP c Two.\n# TYPE c gauge\n\
                        c{x=\"1\",y=\"z\"} 0.5\nc{x=\"2\",y=\"z\"} 18446744073709551615\n";
        assert_eq!(metrics.to_string(), expected);
    }

    #[test]
    fn a_label_cannot_end_itself() {
        assert_eq!(labels(&[("a", &"a\"b\\c\nd")]), "{a=\"a\\\"b\\\\c\\nd\"}");
    }
}
