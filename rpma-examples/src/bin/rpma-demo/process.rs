//! A child process: its lines, its end, and the certainty that it does not outlive us.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::parent_id;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

/// What a child's standard output gave.
#[derive(Debug)]
pub(crate) enum Heard<Who> {
    Line(Who, String),
    /// There will be no more: the child has closed it, or is gone.
    End(Who),
}

/// A child that is killed and reaped when this is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts it, and sends what it prints to `to`.
    pub(crate) fn start<Who: Copy + Send + 'static>(mut command: Command, who: Who, to: Sender<Heard<Who>>) -> io::Result<Self> {
        let mut process = Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        let stdout = process.0.stdout.take().ok_or_else(|| io::Error::other("the child's output is not there"))?;
        thread::Builder::new().name("child's output".to_owned()).spawn(move || {
            // Whoever hears it may be gone, or the child may print what is no text: there is nothing more to tell then.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if to.send(Heard::Line(who, line)).is_err() {
                    return;
                }
            }
            let _nobody_hears = to.send(Heard::End(who));
        })?;
        Ok(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends SIGKILL. That it has ended by itself is no error: its status tells.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }

    /// Waits for its end, at most for `timeout`; `None` if it goes on.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.0.try_wait()? {
            return Ok(Some(status));
        }
        // Not reaped yet, so the number is still its own.
        let pidfd = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => return self.0.wait().map(Some),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing to a child that was reaped; a failure leaves nothing to be done.
        let _may_be_gone = self.0.kill();
        let _may_be_reaped = self.0.wait();
    }
}

/// For a child: to be killed when the process that started it, `parent`, is gone, however it went.
pub(crate) fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If it was gone before the call, another process, init or a reaper, has taken its place.
    if parent_id() == parent { Ok(()) } else { Err(io::Error::other("the process that started this one is gone")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn child_s_lines_arrive_in_order_and_then_its_end() {
        let (to, heard) = channel();
        let mut child = Process::start(shell("echo one; echo two; exit 3"), 'a', to).unwrap();
        let lines: Vec<_> =
            heard.iter().map(|heard| if let Heard::Line('a', line) = heard { line } else { "end".to_owned() }).collect();
        assert_eq!(lines, ["one", "two", "end"]);
        assert_eq!(child.wait(LONG).unwrap().unwrap().code(), Some(3));
    }

    #[test]
    fn killed_child_s_status_names_the_signal() {
        let (to, _heard) = channel();
        let mut child = Process::start(shell("exec sleep 1000"), (), to).unwrap();
        assert_eq!(child.wait(Duration::from_millis(10)).unwrap(), None);
        child.kill().unwrap();
        assert_eq!(child.wait(LONG).unwrap().unwrap().signal(), Some(9));
    }

    #[test]
    fn dropped_child_is_killed_and_reaped() {
        let (to, heard) = channel();
        drop(Process::start(shell("exec sleep 1000"), (), to).unwrap());
        assert!(matches!(heard.recv_timeout(LONG), Ok(Heard::End(()))));
    }
}
