"""For tests of what is built on Oncelog: time that is moved by hand, disks and homes that fail on demand."""
