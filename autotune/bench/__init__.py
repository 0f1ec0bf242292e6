"""What samples are taken on: tables of their own, and the checks that come before."""
