"""Campaigns: a search that goes on for hours, on one machine or many, and loses nothing when any part of it is killed.

orders      what a worker is asked to do, and what it answers
work        a worker doing it
apart       the same, one program in a process of its own, to catch what kills or blocks a worker
crew        worker processes of this machine; `ray_crew` those of a cluster
conductor   gives out orders, takes in results, redoes what was lost
corpus      what guides the search: kept programs, examples, situations
failures    what was found, and which of it fails now
records     what was done, merged so that nothing is counted twice
store       corpus, failures, records and open orders, in a Hypothesis example database (a directory, or Redis)
findings    which failures are the same
"""
