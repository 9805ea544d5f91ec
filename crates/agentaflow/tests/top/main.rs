//! `agentaflow top` as its users meet it: a real server, a real pseudo-terminal, real keys and signals.
