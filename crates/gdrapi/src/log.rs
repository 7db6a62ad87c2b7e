//! Logging as in GDRCopy: to stderr, if the environment enables it.
//!
//! The crates below log through `tracing`, and this is the shared library's subscriber. Without
//! `GDRCOPY_ENABLE_LOGGING` it is not installed, and an event costs one load. Copies do not use it, because signal
//! handlers copy too, and formatting an event allocates.

use std::fmt::{self, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Installs the subscriber if `GDRCOPY_ENABLE_LOGGING` is set. Further calls do nothing.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if gdr_process::variable("GDRCOPY_ENABLE_LOGGING").is_none() {
            return;
        }
        let text = gdr_process::variable("GDRCOPY_LOG_LEVEL");
        let filter = threshold(text.as_ref().and_then(|text| text.to_str()));
        // Fails only in a program that links the rlib and already has a subscriber, which stays.
        if tracing::subscriber::set_global_default(Stderr { filter }).is_ok() {
            ERRORS.store(filter >= LevelFilter::ERROR, Ordering::Relaxed);
        }
    });
}

/// Whether errors are written to stderr.
static ERRORS: AtomicBool = AtomicBool::new(false);

/// Writes a complete line about an error. Signal handlers may call it: it makes one system call, which is not a
/// cancellation point, and restores `errno`.
#[cold]
pub(crate) fn error_from_a_copy(line: &'static str) {
    if !ERRORS.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the pointer and length come from one string; `errno` is this thread's.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO,
            line.as_ptr(),
            line.len(),
        );
        *errno = before;
    }
}

/// Returns the level of `GDRCOPY_LOG_LEVEL`: up to 1 everything, 2 info, 3 warnings, 4 errors, from 5 on nothing.
/// Without a number, errors only.
fn threshold(text: Option<&str>) -> LevelFilter {
    let number = text
        .and_then(|text| text.trim().parse::<i64>().ok())
        .unwrap_or(4);
    match number {
        ..=1 => LevelFilter::TRACE,
        2 => LevelFilter::INFO,
        3 => LevelFilter::WARN,
        4 => LevelFilter::ERROR,
        5.. => LevelFilter::OFF,
    }
}

fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERR:  ",
        Level::WARN => "WARN: ",
        Level::INFO => "INFO: ",
        _ => "DBG:  ",
    }
}

struct Stderr {
    filter: LevelFilter,
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.filter
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter)
    }

    fn event(&self, event: &Event<'_>) {
        write_line(&line(event));
    }

    // Spans are disabled, so these are not called for spans of this library.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn line(event: &Event<'_>) -> String {
    let mut line = Line {
        message: String::new(),
        fields: String::new(),
    };
    event.record(&mut line);
    format!(
        "{}{}{}\n",
        prefix(*event.metadata().level()),
        line.message,
        line.fields
    )
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// Writes with a single system call and without the lock of `std::io::stderr`, so that lines of several threads do not
/// mix, and a forked child does not wait for its parent's lock.
fn write_line(line: &str) {
    // SAFETY: the pointer and length come from one string. An error cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps the lines that [`Stderr`] would write.
    struct Kept {
        filter: LevelFilter,
        lines: Arc<Mutex<Vec<String>>>,
    }

    impl Subscriber for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            Stderr {
                filter: self.filter,
            }
            .enabled(metadata)
        }
        fn event(&self, event: &Event<'_>) {
            self.lines.lock().unwrap().push(line(event));
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    fn lines_at(level: &str) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Kept {
            filter: threshold(Some(level)),
            lines: lines.clone(),
        };
        tracing::subscriber::with_default(kept, || {
            tracing::error!("an error");
            tracing::warn!("a warning");
            tracing::info!(size = 7, "some {}", "information");
            tracing::debug!("a detail");
        });
        std::mem::take(&mut *lines.lock().unwrap())
    }

    #[test]
    fn every_level_has_its_prefix() {
        let expected = [
            "ERR:  an error\n",
            "WARN: a warning\n",
            "INFO: some information size=7\n",
            "DBG:  a detail\n",
        ];
        assert_eq!(lines_at("1"), expected);
        assert_eq!(lines_at("2"), expected[..3]);
        assert_eq!(lines_at("3"), expected[..2]);
        assert_eq!(lines_at("4"), expected[..1]);
        assert!(lines_at("5").is_empty());
    }

    #[test]
    fn the_default_is_errors_only() {
        assert_eq!(threshold(None), LevelFilter::ERROR);
        assert_eq!(threshold(Some("loud")), LevelFilter::ERROR);
        assert_eq!(threshold(Some("-3")), LevelFilter::TRACE);
    }
}
