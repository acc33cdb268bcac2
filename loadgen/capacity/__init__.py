"""The highest request rate that holds a service level objective, found by bisection."""
