//! The workloads on which the score and the cache model judge configurations.

use scxprof::testing::cluster::truth::Scenario;

/// Their names and parameters.
pub fn all() -> Vec<(&'static str, Scenario)> {
    let base = Scenario { threads: 16, samples: 8000, share: 0.2, private_pages: 16, ..Scenario::default() };
    let with = |change: fn(&mut Scenario)| {
        let mut scenario = base.clone();
        change(&mut scenario);
        scenario
    };
    vec![
        ("4 groups", with(|_| ())),
        ("2 groups", with(|it| it.groups = 2)),
        ("8 groups of 4", with(|it| (it.groups, it.threads) = (8, 32))),
        ("one group", with(|it| (it.groups, it.threads) = (1, 8))),
        ("3 groups of 256 pages", with(|it| (it.groups, it.threads, it.pages) = (3, 12, 256))),
        ("1,024 pages", with(|it| (it.groups, it.pages) = (2, 1024))),
        ("1,024 pages, 32 threads", with(|it| (it.threads, it.pages, it.share) = (32, 1024, 0.4))),
        ("one page", with(|it| it.pages = 1)),
        ("one line", with(|it| (it.one_line, it.share) = (true, 0.1))),
        ("one line, 8 groups of 2", with(|it| (it.one_line, it.groups) = (true, 8))),
        ("share of 5 %", with(|it| it.share = 0.05)),
        ("share of 40 %", with(|it| it.share = 0.4)),
        ("overlap of 20 %", with(|it| it.overlap = 0.2)),
        ("drift of 20 %", with(|it| it.drift = 0.2)),
        ("20 % hot globals", with(|it| it.globals = 0.2)),
        ("20 % noise", with(|it| it.noise = 0.2)),
        ("dominant group of 60 %", with(|it| (it.dominant, it.threads) = (0.6, 20))),
        ("other processes", with(|it| (it.cross_process, it.groups) = (true, 6))),
        (
            "5 groups, 10 % overlap and drift",
            with(|it| (it.groups, it.threads, it.overlap, it.drift) = (5, 20, 0.1, 0.1)),
        ),
        ("private memory beyond the caches", with(|it| (it.private_pages, it.threads) = (64, 24))),
    ]
}
