from .ftpo import FTPOConfig as FTPOConfig, FTPOLoss as FTPOLoss, FTPOTrainer as FTPOTrainer, ftpo_loss as ftpo_loss
from .rows import FTPORow as FTPORow, load_pairs as load_pairs
