//! A command that waits for a client.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A server, killed when the test ends.
pub(super) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts `gdr` with these arguments, and returns once it waits for a client.
    pub(super) fn start(arguments: &str) -> Self {
        Self::of(super::program().stderr(Stdio::null()), arguments)
    }

    /// Like [`Self::start`], by this command, whose errors are kept if they are piped.
    pub(super) fn of(program: &mut Command, arguments: &str) -> Self {
        let mut child = program
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.trim_start().starts_with("waiting ") {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the server ended");
        }
        Self { child, stdout }
    }

    /// Waits until it ends; returns how it ended, and the rest of what it printed, errors last.
    pub(super) fn end(mut self) -> (i32, String) {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut text).unwrap();
        }
        (self.child.wait().unwrap().code().unwrap(), text)
    }

    /// Kills it, as if its host had lost its power.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
    }
}
