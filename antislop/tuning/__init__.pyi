from .loss import FTPOLoss as FTPOLoss, ftpo_loss as ftpo_loss
from .rows import FTPORow as FTPORow, load_pairs as load_pairs
from .trainer import FTPOConfig as FTPOConfig, FTPOTrainer as FTPOTrainer
