//! Programs that run with low priority.

use std::thread::{self, JoinHandle};

use rustix::process::nice;

/// Runs `work` on a thread whose programs have a niceness, sched(7): 19 is the maximum.
pub fn spawn<T: Send + 'static>(
    niceness: i32,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::spawn(move || {
        // Linux has a niceness per thread, which its children inherit. No result depends on it.
        if let Err(error) = nice(niceness) {
            eprintln!("the priority stays as it is: {error}");
        }
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_thread_give_way_and_those_of_others_do_not() {
        let of_program = || {
            let output = std::process::Command::new("nice").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.trim().parse::<i32>().unwrap()
        };
        let before = of_program();
        let within = spawn(3, of_program).join().unwrap();
        assert_eq!(within, (before + 3).min(19));
        assert_eq!(of_program(), before);
    }
}
