//! What `gdr serve` counts, in Prometheus' text format.

use std::fmt::{Display, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Weak;

use anyhow::{Context, Result};
use gdr_doctor::report::prometheus::label;
use gdr_object::{Epoch, HomeStats, ObjectInfo};

use super::{Served, http};

/// Answers at `address`; returns the address with its port.
pub(super) fn serve(address: SocketAddr, served: Weak<Served>) -> Result<SocketAddr> {
    let failed = || format!("--metrics {address} cannot be listened at");
    let listener = TcpListener::bind(address).with_context(failed)?;
    let bound = listener.local_addr().with_context(failed)?;
    let page = move |path: &str| {
        // Without it the command is ending.
        let served = served.upgrade().filter(|_| path == "/metrics")?;
        let objects = served.home.objects();
        let with_readers = objects.iter();
        let with_readers = with_readers.map(|info| (info, served.readers(&info.name)));
        Some(render(served.home.stats(), with_readers.collect()))
    };
    http::serve(listener, page).context("a thread cannot be started")?;
    Ok(bound)
}

/// The text of a page.
fn render(stats: HomeStats, objects: Vec<(&ObjectInfo, usize)>) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("objects", "gauge", "Objects.", stats.objects),
        ("links", "gauge", "Peers that are connected.", stats.links),
        (
            "links_accepted_total",
            "counter",
            "Peers that connected.",
            stats.links_accepted,
        ),
        (
            "links_refused_total",
            "counter",
            "Peers that were refused because there were too many.",
            stats.links_refused,
        ),
        (
            "links_displaced_total",
            "counter",
            "Idle peers that made room for others.",
            stats.links_displaced,
        ),
        (
            "connections_failed_total",
            "counter",
            "Connections without the key, or of another protocol.",
            stats.connections_failed,
        ),
        (
            "requests_total",
            "counter",
            "Requests of peers that were executed.",
            stats.requests,
        ),
        (
            "requests_refused_total",
            "counter",
            "Requests of peers that were refused.",
            stats.requests_refused,
        ),
        (
            "requests_malformed_total",
            "counter",
            "Malformed messages; each ended a connection.",
            stats.requests_malformed,
        ),
    ] {
        family(&mut text, name, kind, help);
        // Writing to a string never fails.
        let _ = writeln!(text, "gdr_serve_{name} {value}");
    }
    let mut each = |name, kind, help, value: &dyn Fn(&ObjectInfo, usize) -> Box<dyn Display>| {
        family(&mut text, name, kind, help);
        for (info, readers) in &objects {
            let object = label(info.name.as_str());
            let value = value(info, *readers);
            let _ = writeln!(text, "gdr_serve_{name}{{object=\"{object}\"}} {value}");
        }
    };
    each("object_bytes", "gauge", "Bytes of an epoch.", &|info, _| {
        Box::new(info.bytes)
    });
    let epoch = |info: &ObjectInfo| info.newest.map_or(0, Epoch::get);
    each(
        "object_epoch",
        "counter",
        "The newest epoch; 0 if nothing was published.",
        &|info, _| Box::new(epoch(info)),
    );
    each(
        "object_readers",
        "gauge",
        "Peers that have it open.",
        &|_, readers| Box::new(readers),
    );
    family(
        &mut text,
        "object_info",
        "gauge",
        "1, with what the object is.",
    );
    for (info, _) in &objects {
        let _ = writeln!(
            text,
            "gdr_serve_object_info{{object=\"{}\",element=\"{}\",shape=\"{}\",mode=\"{}\",\
             memory=\"{}\",path=\"{}\",why=\"{}\"}} 1",
            label(info.name.as_str()),
            info.element,
            info.shape,
            info.mode,
            info.location,
            label(&info.path.to_string()),
            label(&info.path.why),
        );
    }
    text
}

/// The lines before a metric.
fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string never fails.
    let _ = write!(
        text,
        "# HELP gdr_serve_{name} {help}\n# TYPE gdr_serve_{name} {kind}\n"
    );
}
