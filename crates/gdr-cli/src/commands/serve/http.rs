//! A small HTTP server for monitoring: GET and HEAD, one request per connection, everything bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum length of a request's head.
const LONGEST_HEAD: usize = 8 << 10;
/// Maximum number of connections to serve at a time.
const MOST_CLIENTS: usize = 8;
/// How long a client may take, from the connection to the end of the response.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a refused client may take.
const BRIEF: Duration = Duration::from_millis(200);
/// Pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    Timeout,
    HeadTooLarge,
    VersionNotSupported,
    Busy,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
            Self::Busy => "503 Service Unavailable",
        }
    }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Head,
}

/// The first line of a request.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    method: Method,
    /// Without the query.
    path: &'a str,
}

/// Answers requests with `page`, which returns the text for a path, until the process ends.
pub(super) fn serve(
    listener: TcpListener,
    page: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> io::Result<()> {
    let page: Arc<Page> = Arc::new(page);
    let clients = Arc::new(AtomicUsize::new(0));
    thread::Builder::new()
        .name("gdr-metrics".to_owned())
        .spawn(move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => accept(stream, &page, &clients),
                    Err(error) => {
                        tracing::debug!("metrics: accept: {error}");
                        thread::sleep(PAUSE);
                    }
                }
            }
        })
        .map(|_| ())
}

/// Returns the text of a path.
type Page = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Serves a client on a thread, or refuses it if there are too many.
fn accept(mut stream: TcpStream, page: &Arc<Page>, clients: &Arc<AtomicUsize>) {
    let client = Client::enter(clients);
    let Some(client) = client else {
        let answer = answer(Status::Busy, Method::Get, "too many clients\n");
        // Best effort: the client at least sees the connection end.
        let _ = write(&stream, &answer, Instant::now() + BRIEF);
        return;
    };
    let page = Arc::clone(page);
    let served = thread::Builder::new()
        .name("gdr-metrics-client".to_owned())
        .spawn(move || {
            let _client = client;
            if let Err(error) = converse(&mut stream, &*page, Instant::now() + LIMIT) {
                tracing::debug!("metrics: {error}");
            }
        });
    if let Err(error) = served {
        tracing::debug!("metrics: starting a thread: {error}");
    }
}

/// A client that counts towards the limit.
struct Client(Arc<AtomicUsize>);

impl Client {
    fn enter(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let client = Self(Arc::clone(clients));
        // Undone on drop.
        (clients.fetch_add(1, Ordering::Relaxed) < MOST_CLIENTS).then_some(client)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads a request and answers it.
fn converse(stream: &mut TcpStream, page: &Page, deadline: Instant) -> io::Result<()> {
    let head = read_head(stream, deadline)?;
    let (method, status, text) = match head.as_deref().map_err(|status| *status).and_then(parse) {
        Ok(Request { method, path }) => match page(path) {
            Some(text) => (method, Status::Ok, text),
            None => (method, Status::NotFound, "see /metrics\n".to_owned()),
        },
        Err(status) => (Method::Get, status, format!("{}\n", status.line())),
    };
    write(stream, &answer(status, method, &text), deadline)
}

/// Reads up to the empty line that ends the head.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Vec<u8>, Status>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let Some(left) = left(deadline) else {
            return Ok(Err(Status::Timeout));
        };
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(Err(Status::BadRequest)),
            Ok(read) => head.extend_from_slice(&part[..read]),
            Err(error) if is_retry(&error) => continue,
            Err(error) => return Err(error),
        }
        if let Some(end) = end_of_head(&head) {
            head.truncate(end);
            return Ok(Ok(head));
        }
        if head.len() > LONGEST_HEAD {
            return Ok(Err(Status::HeadTooLarge));
        }
    }
}

/// Returns where the head ends. Lines may end without a carriage return (RFC 9112, 2.2).
fn end_of_head(head: &[u8]) -> Option<usize> {
    let crlf = head.windows(4).position(|four| four == b"\r\n\r\n");
    let lf = head.windows(2).position(|two| two == b"\n\n");
    match (crlf, lf) {
        (Some(crlf), Some(lf)) => Some(crlf.min(lf)),
        (crlf, lf) => crlf.or(lf),
    }
}

/// Reads the first line of a head.
fn parse(head: &[u8]) -> Result<Request<'_>, Status> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(|_| Status::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Status::BadRequest);
    };
    if !target.starts_with('/') || target.contains(|c: char| c.is_control()) {
        return Err(Status::BadRequest);
    }
    match version {
        "HTTP/1.0" | "HTTP/1.1" => {}
        version if version.starts_with("HTTP/") => return Err(Status::VersionNotSupported),
        _ => return Err(Status::BadRequest),
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        _ => return Err(Status::MethodNotAllowed),
    };
    let path = target.split('?').next().unwrap_or(target);
    Ok(Request { method, path })
}

/// Returns the bytes of an answer.
fn answer(status: Status, method: Method, text: &str) -> Vec<u8> {
    let allow = match status {
        Status::MethodNotAllowed => "Allow: GET, HEAD\r\n",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        status.line(),
        text.len()
    );
    match method {
        Method::Get => (head + text).into_bytes(),
        Method::Head => head.into_bytes(),
    }
}

/// Writes all of `bytes` up to the deadline.
fn write(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = left(deadline).ok_or(ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(error),
        }
    }
    // Without this, unread bytes of the request would reset the connection before the response arrives.
    stream.shutdown(std::net::Shutdown::Write)
}

/// Returns the nonzero time until a deadline; `None` once it has passed.
fn left(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn is_retry(error: &io::Error) -> bool {
    // A timeout is WouldBlock or TimedOut. The next iteration checks the deadline.
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    fn started() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let page = |path: &str| (path == "/metrics").then(|| "x 1\n".repeat(100_000));
        serve(listener, page).unwrap();
        address
    }

    /// Sends these bytes and returns the answer.
    fn ask(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // The server may close the connection before everything is sent.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn metrics_are_answered_whole_and_other_requests_refused() {
        let address = started();
        let text = ask(address, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text:.200}");
        assert!(text.contains("Content-Length: 400000\r\n"), "{text:.200}");
        assert_eq!(text.matches("x 1\n").count(), 100_000);
        let text = ask(address, b"HEAD /metrics HTTP/1.0\n\n");
        assert!(text.contains("Content-Length: 400000\r\n"), "{text:.200}");
        assert!(text.ends_with("\r\n\r\n"), "{text:.200}");
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics HTTP/2.0\r\n\r\n", "505"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\x16\x03\x01\x02\x00\x01\n\n", "400"),
            (b"GET http://x/ HTTP/1.1\r\n\r\n", "400"),
        ] {
            let text = ask(address, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        }
    }

    #[test]
    fn a_head_without_end_is_refused_when_it_is_too_long() {
        let text = ask(started(), &[b'a'; 2 * LONGEST_HEAD]);
        // The response may be lost with the bytes that the server did not read.
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 431 "),
            "{text}"
        );
    }

    #[test]
    fn silent_clients_delay_others_no_longer_than_the_limit() {
        let address = started();
        let silent: Vec<_> = (0..3 * MOST_CLIENTS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        // While they are connected, a client may be refused. It is served once their time is over.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ") {
            assert!(Instant::now() < deadline, "it is never served");
        }
        drop(silent);
    }

    proptest! {
        #[test]
        fn any_head_is_parsed_or_refused(head in any::<Vec<u8>>()) {
            if let Some(end) = end_of_head(&head) {
                prop_assert!(end < head.len());
            }
            let _ = parse(&head);
        }

        #[test]
        fn a_path_is_what_stands_before_the_query(path in "/[a-z/]{0,9}", query in "[a-z=&?]{0,9}") {
            let head = format!("GET {path}?{query} HTTP/1.1\r\nA: b");
            let request = Request { method: Method::Get, path: &path };
            prop_assert_eq!(parse(head.as_bytes()), Ok(request));
        }
    }
}
