//! Counters of `gdr serve` in Prometheus' text format.

use std::net::{SocketAddr, TcpListener};
use std::sync::Weak;

use anyhow::{Context, Result};
use gdr_object::{Epoch, ObjectInfo, ServerStats};
use gdr_render::prometheus::Kind::{Counter, Gauge};
use gdr_render::prometheus::{Metrics, labels};

use super::{Served, http};

/// Serves metrics at `address`; returns the address with its port.
pub(super) fn serve(address: SocketAddr, served: Weak<Served>) -> Result<SocketAddr> {
    let failed = || format!("--metrics {address} cannot be listened at");
    let listener = TcpListener::bind(address).with_context(failed)?;
    let bound = listener.local_addr().with_context(failed)?;
    let page = move |path: &str| {
        // Without it, the command is ending.
        let served = served.upgrade().filter(|_| path == "/metrics")?;
        let objects = served.server.objects();
        let with_readers = objects.iter();
        let with_readers = with_readers.map(|info| (info, served.readers(&info.name)));
        Some(render(served.server.stats(), with_readers.collect()))
    };
    http::serve(listener, page).context("a thread cannot be started")?;
    Ok(bound)
}

/// Renders a page as text.
fn render(stats: ServerStats, objects: Vec<(&ObjectInfo, usize)>) -> String {
    let mut metrics = Metrics::default();
    for (name, kind, help, value) in [
        ("objects", Gauge, "Objects.", stats.objects),
        ("links", Gauge, "Peers that are connected.", stats.links),
        (
            "links_accepted_total",
            Counter,
            "Peers that connected.",
            stats.links_accepted,
        ),
        (
            "links_refused_total",
            Counter,
            "Peers that were refused because there were too many.",
            stats.links_refused,
        ),
        (
            "links_displaced_total",
            Counter,
            "Idle peers that made room for others.",
            stats.links_displaced,
        ),
        (
            "connections_failed_total",
            Counter,
            "Connections without the key, or of another protocol.",
            stats.connections_failed,
        ),
        (
            "requests_total",
            Counter,
            "Requests of peers that were executed.",
            stats.requests,
        ),
        (
            "requests_refused_total",
            Counter,
            "Requests of peers that were refused.",
            stats.requests_refused,
        ),
        (
            "requests_malformed_total",
            Counter,
            "Malformed messages; each ended a connection.",
            stats.requests_malformed,
        ),
    ] {
        metrics.single(&format!("gdr_serve_{name}"), kind, help, value);
    }
    let object = |info: &ObjectInfo| labels(&[("object", &info.name.as_str())]);
    let bytes = metrics.family("gdr_serve_object_bytes", Gauge, "Bytes of an epoch.");
    for (info, _) in &objects {
        bytes.sample(&object(info), info.bytes);
    }
    let help = "The newest epoch; 0 if nothing was published.";
    let epoch = metrics.family("gdr_serve_object_epoch", Counter, help);
    for (info, _) in &objects {
        epoch.sample(&object(info), info.newest.map_or(0, Epoch::get));
    }
    let help = "Peers that have it open.";
    let with_readers = metrics.family("gdr_serve_object_readers", Gauge, help);
    for (info, readers) in &objects {
        with_readers.sample(&object(info), readers);
    }
    let help = "1, with what the object is.";
    let about = metrics.family("gdr_serve_object_info", Gauge, help);
    for (info, _) in &objects {
        let labels = labels(&[
            ("object", &info.name.as_str()),
            ("element", &info.element),
            ("shape", &info.shape),
            ("mode", &info.mode),
            ("memory", &info.location),
            ("path", &info.path),
            ("why", &info.path.why),
        ]);
        about.sample(&labels, 1);
    }
    metrics.to_string()
}
