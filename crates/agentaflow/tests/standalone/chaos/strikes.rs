//! One strike of the campaign: a kill, a loss or a step of the wall clock.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{CLOCK_AGENT, Campaign, LEASE, ORIGINAL};

/// Away for longer than the lease: the jobs of the node start elsewhere.
const LONG_AWAY: Duration = LEASE.saturating_add(Duration::from_secs(4));
const SHORT_AWAY: Duration = Duration::from_millis(1500);

impl Campaign {
    pub(super) fn strike(&mut self) {
        let struck = match self.dice.below(16) {
            0..3 => self.kill_server(),
            3..6 => self.kill_agent(),
            6..8 => self.kill_agent_and_guardian(),
            8..10 => self.lose_machine(),
            10..12 => self.step_wall_clock(),
            12 => self.restart_original_worker(),
            13 if self.postgres.is_some() => self.kill_postgres(),
            _ if self.docker.is_some() => self.kill_docker(),
            _ if self.postgres.is_some() => self.kill_postgres(),
            _ => self.kill_server(),
        };
        let at = self.started.elapsed().as_secs_f64();
        self.struck.push(format!("{at:.1} s: {struck}"));
    }

    fn kill_server(&mut self) -> String {
        let away = self.dice.duration(SHORT_AWAY / 2);
        self.cluster.server.kill();
        sleep(away);
        self.cluster.restart_server();
        format!("server, for {away:?}")
    }

    /// An agent that is up; one of the killed ones if none is.
    fn victim(&mut self) -> String {
        let up: Vec<&str> = ["one", "two", "three"]
            .into_iter()
            .filter(|name| !self.down.contains_key(*name))
            .collect();
        if up.is_empty() {
            self.restart_agents(true);
            return "one".to_owned();
        }
        up[self.dice.below(up.len() as u64) as usize].to_owned()
    }

    /// Schedules the restart of a killed agent. One in four is away for longer than its lease.
    fn stay_away(&mut self, name: &str, may_be_long: bool) -> Duration {
        let long = self.dice.below(4) == 0 && may_be_long;
        let away = if long { LONG_AWAY } else { self.dice.duration(SHORT_AWAY) };
        self.down.insert(name.to_owned(), Instant::now() + away);
        away
    }

    fn kill_agent(&mut self) -> String {
        let name = self.victim();
        self.cluster.agents.get_mut(&name).unwrap().kill();
        format!("agent {name}, for {:?}", self.stay_away(&name, true))
    }

    /// Process jobs die with the guardian, containers with their lease unless the agent returns before.
    fn kill_agent_and_guardian(&mut self) -> String {
        let name = self.victim();
        self.cluster.agents.get_mut(&name).unwrap().kill();
        self.cluster.kill_guardian(&name);
        format!("agent and guardian {name}, for {:?}", self.stay_away(&name, true))
    }

    /// Kills all processes of a machine. A Docker engine serves all three agents and loses its power with them.
    fn lose_machine(&mut self) -> String {
        let name = self.victim();
        let Some(mut docker) = self.docker.take() else {
            self.cluster.lose_machine(&name);
            return format!("machine {name}, for {:?}", self.stay_away(&name, true));
        };
        for name in ["one", "two", "three"] {
            self.cluster.lose_machine(name);
            self.down.insert(name.to_owned(), Instant::now());
        }
        docker.lose_power();
        docker.start_again();
        self.docker = Some(docker);
        "all machines with their Docker engine".to_owned()
    }

    /// Sets the clock of the server or of an agent up to 40 days before or after the true time: while the server runs, while
    /// it is away, or with a kill soon after. Jobs are kept for 90 days.
    fn step_wall_clock(&mut self) -> String {
        let Some(clocks) = &self.clocks else { return self.kill_server() };
        let days = self.dice.below(81) as i64 - 40;
        let seconds = days * 86_400 + self.dice.below(3600) as i64;
        let wall = &clocks.server;
        match self.dice.below(4) {
            0 => wall.set(seconds),
            3 => {
                clocks.agent.set(seconds);
                return format!("wall clock of agent {CLOCK_AGENT}, to {seconds:+} s");
            }
            1 => {
                wall.set(seconds);
                let pause = self.dice.duration(SHORT_AWAY);
                sleep(pause);
                self.cluster.server.kill();
                self.cluster.restart_server();
            }
            _ => {
                self.cluster.server.kill();
                wall.set(seconds);
                self.cluster.restart_server();
            }
        }
        format!("wall clock, to {seconds:+} s")
    }

    /// Kills the machine of the original worker with its container. The worker forgets its job.
    fn restart_original_worker(&mut self) -> String {
        let away = self.dice.duration(SHORT_AWAY);
        self.worker.kill();
        sleep(away);
        self.worker = self.worker.restarted(&self.cluster, ORIGINAL);
        format!("original worker, for {away:?}")
    }

    fn kill_docker(&mut self) -> String {
        let away = self.dice.duration(SHORT_AWAY);
        let docker = self.docker.as_mut().unwrap();
        docker.kill();
        sleep(away);
        docker.start_again();
        format!("Docker engine, for {away:?}")
    }

    /// Kills the database, half of the time together with the server.
    fn kill_postgres(&mut self) -> String {
        let (away, both) = (self.dice.duration(SHORT_AWAY), self.dice.below(2) == 0);
        let postgres = self.postgres.as_mut().unwrap();
        postgres.kill();
        if both {
            self.cluster.server.kill();
        }
        sleep(away);
        postgres.start_again();
        if both {
            self.cluster.restart_server();
        }
        format!("database{}, for {away:?}", if both { " and server" } else { "" })
    }
}
