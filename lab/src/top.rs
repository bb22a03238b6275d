//! `top`: the live view of a mount in the terminal.
//!
//! ```text
//! butternut stats --json, once per interval, on a thread of its own -> view -> terminal, or text
//! ```
//!
//! Laws:
//!
//! 1. The numbers are those of `butternut stats`; rates are differences of two of its answers.
//! 2. The terminal is restored on every way out: the key, an error, a signal, a panic.
//! 3. A mount that does not respond blocks neither the keys nor the end of the program.

mod view;

use crate::{child, interrupt, tools};
use anyhow::{Context, Result, bail};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use view::View;

/// How often keys, signals and answers are looked at.
const POLL: Duration = Duration::from_millis(100);
/// Size of a frame that is printed as text, in characters. Empty lines are left out.
const FRAME: (u16, u16) = (100, 200);

/// Options of `top`.
#[expect(clippy::doc_markdown, reason = "help texts")]
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The mount point, or any path in the mount
    mountpoint: PathBuf,
    /// Seconds between two answers of the mount, from 0.1 to 3600
    #[arg(long, short, default_value = "1", value_name = "SECONDS", value_parser = interval)]
    interval: Duration,
    /// Print one frame as text, and exit; also where the output is no terminal
    #[arg(long)]
    once: bool,
    /// The butternut program [default: $BUTTERNUT_BIN, or the program beside this one]
    #[arg(long, value_name = "FILE")]
    butternut: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("want seconds from 0.1 to 3600".to_owned()),
    }
}

/// An answer of the mount, and when it came.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    stats: Value,
}

/// Shows the mount until the user quits.
///
/// # Errors
/// The mount does not answer the first time, the terminal cannot be used, or a signal has come.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let program = tools::butternut(args.butternut.as_ref())
        .context("butternut is missing (cargo install --path crates/cli, or --butternut FILE)")?;
    let answers = sampler(program, args.mountpoint.clone(), args.interval)?;
    let mut view = View::new(args.mountpoint.display().to_string());
    let first = next(&answers)?;
    view.add(first.at, first.stats);
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return once(view, &answers);
    }
    let mut screen = Screen(ratatui::try_init().context("the terminal")?);
    show(&mut screen.0, &mut view, &answers)?;
    Ok(true)
}

/// Restores the terminal when it is dropped (law 2). `try_init` restores it in a panic.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        drop(ratatui::try_restore());
    }
}

/// Requests the statistics from the mount.
fn sample(program: &Path, mountpoint: &Path) -> Result<Sample> {
    let words: [OsString; 4] =
        ["stats".into(), "--json".into(), "--".into(), mountpoint.as_os_str().to_owned()];
    let text = child::run(&program.to_string_lossy(), &words)?;
    let stats = serde_json::from_str(&text).context("the answer of the mount")?;
    Ok(Sample { at: Instant::now(), stats })
}

type Answer = Result<Sample, String>;

/// Starts the thread that requests answers, the first one at once. It ends when the receiver is
/// dropped.
fn sampler(program: PathBuf, mountpoint: PathBuf, interval: Duration) -> Result<Receiver<Answer>> {
    let (sender, answers) = mpsc::channel();
    let run = move || {
        loop {
            let answer = sample(&program, &mountpoint).map_err(|error| format!("{error:#}"));
            if sender.send(answer).is_err() {
                return;
            }
            std::thread::sleep(interval);
        }
    };
    std::thread::Builder::new().name("stats".into()).spawn(run)?;
    Ok(answers)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "all other keys do nothing")]
fn show(terminal: &mut DefaultTerminal, view: &mut View, answers: &Receiver<Answer>) -> Result<()> {
    loop {
        interrupt::check()?;
        for answer in answers.try_iter() {
            match answer {
                Ok(sample) => view.add(sample.at, sample.stats),
                Err(why) => view.fail(why),
            }
        }
        terminal.draw(|frame| view.draw(frame)).context("the terminal")?;
        if event::poll(POLL).context("the terminal")?
            && let Event::Key(key) = event::read().context("the terminal")?
        {
            let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if is_control => return Ok(()),
                KeyCode::Down => view.scroll(1),
                KeyCode::Up => view.scroll(-1),
                KeyCode::PageDown => view.scroll(10),
                KeyCode::PageUp => view.scroll(-10),
                _ => {}
            }
        }
    }
}

/// Waits for an answer, or for a signal (law 3).
fn next(answers: &Receiver<Answer>) -> Result<Sample> {
    loop {
        interrupt::check()?;
        match answers.recv_timeout(POLL) {
            Ok(Ok(sample)) => return Ok(sample),
            Ok(Err(why)) => bail!(why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the thread of the statistics has ended"),
        }
    }
}

/// Prints one frame as text, from two answers.
fn once(mut view: View, answers: &Receiver<Answer>) -> Result<bool> {
    let second = next(answers)?;
    view.add(second.at, second.stats);
    std::io::stdout().write_all(frame(&mut view)?.as_bytes())?;
    Ok(true)
}

/// Returns a frame as text, without what is about keys.
fn frame(view: &mut View) -> Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(FRAME.0, FRAME.1))?;
    terminal.draw(|frame| view.draw(frame))?;
    let text = terminal.backend().to_string();
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && *line != view::KEYS).collect();
    Ok(lines.join("\n") + "\n")
}
