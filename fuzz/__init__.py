"""Strange input for every decoder and for whole sessions of each server, guided by coverage."""
